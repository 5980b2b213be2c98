// libmoth_gloo.so: see transport_shim.h. Waits have no timeout of Gloo's, which would break all connections: who waits is woken
// instead, and may go on waiting.
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include <map>
#include <mutex>
#include <set>
#include <string>

#include "comm/transport_shim.h"

namespace {

using std::chrono::milliseconds;

class Store : public gloo::rendezvous::Store {
public:
  explicit Store(const MothTransportStore &s) : s_(s) {}
  void set(const std::string &key, const std::vector<char> &data) override {
    if (!s_.set(s_.ctx, key.c_str(), data.data(), data.size()))
      throw std::runtime_error("the store did not take a key");
  }
  std::vector<char> get(const std::string &key) override {
    void *block = nullptr;
    const char *data = nullptr;
    size_t n = 0;
    if (!s_.get(s_.ctx, key.c_str(), &block, &data, &n))
      throw std::runtime_error("not all ranks came");
    std::vector<char> value(data, data + n);
    free(block);
    return value;
  }
  void wait(const std::vector<std::string> &keys) override {
    for (const std::string &key : keys)
      (void)get(key);
  }

private:
  MothTransportStore s_;
};

struct Posted {
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
};

struct Gloo {
  std::shared_ptr<gloo::rendezvous::Context> context;
  std::mutex lock; // of live
  std::set<Posted *> live;
};

// A device has a thread: one for all groups of the process.
std::shared_ptr<gloo::transport::Device> device_of(const char *host) {
  static std::mutex lock;
  static auto *devices = new std::map<std::string, std::shared_ptr<gloo::transport::Device>>;
  std::lock_guard<std::mutex> guard(lock);
  auto &device = (*devices)[host];
  if (!device) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    try {
      device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(host));
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  return device;
}

void *open_gloo(const char *host, int rank, int size, double timeout,
                const MothTransportStore *store, char *why, size_t n) {
  try {
    auto *g = new Gloo;
    auto device = device_of(host);
    Store wrapped(*store);
    g->context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    g->context->setTimeout(milliseconds(static_cast<long>(timeout < 1e6 ? timeout * 1e3 : 1e9)));
    g->context->connectFullMesh(wrapped, device);
    return g;
  } catch (const std::exception &e) {
    snprintf(why, n, "%s", e.what());
    return nullptr;
  }
}

void *post(void *gloo, int peer, bool sends, int slot, void *data, size_t n) {
  auto *g = static_cast<Gloo *>(gloo);
  auto *p = new (std::nothrow) Posted;
  if (!p)
    return nullptr;
  try {
    p->buffer = g->context->createUnboundBuffer(data, n);
    {
      std::lock_guard<std::mutex> guard(g->lock);
      g->live.insert(p);
    }
    if (sends)
      p->buffer->send(peer, static_cast<uint64_t>(slot), 0, n);
    else
      p->buffer->recv(peer, static_cast<uint64_t>(slot), 0, n);
    return p;
  } catch (const std::exception &) {
    std::lock_guard<std::mutex> guard(g->lock);
    g->live.erase(p);
    delete p;
    return nullptr;
  }
}

int wait_for(void *gloo, void *posted, bool sends) {
  (void)gloo;
  auto *p = static_cast<Posted *>(posted);
  try {
    const milliseconds days(1000000000);
    return sends ? p->buffer->waitSend(nullptr, days) : p->buffer->waitRecv(nullptr, days);
  } catch (const std::exception &) {
    return -1;
  }
}

void drop(void *gloo, void *posted) {
  auto *g = static_cast<Gloo *>(gloo);
  auto *p = static_cast<Posted *>(posted);
  {
    std::lock_guard<std::mutex> guard(g->lock);
    g->live.erase(p);
  }
  try {
    delete p;
  } catch (...) {
  }
}

void wake(void *gloo) {
  auto *g = static_cast<Gloo *>(gloo);
  std::lock_guard<std::mutex> guard(g->lock);
  for (Posted *p : g->live) {
    p->buffer->abortWaitRecv();
    p->buffer->abortWaitSend();
  }
}

void close_gloo(void *gloo, bool broken) {
  (void)broken;
  auto *g = static_cast<Gloo *>(gloo);
  try {
    g->context->closeConnections();
    delete g;
  } catch (...) {
  }
}

} // namespace

extern "C" __attribute__((visibility("default"))) const MothTransportApi moth_transport_api = {
    MOTH_TRANSPORT_VERSION, "gloo", open_gloo, post, wait_for, nullptr, drop, wake, close_gloo};
