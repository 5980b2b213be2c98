/* Capture and graphs. A capture is a list of nodes, each with its predecessors; a launch queues them on the graph's
 * own streams, one for each captured stream, so that branches run in any order, as streams do. */
#include <algorithm>
#include <unordered_set>

#include "emu/emu.h"

struct MothEmuGraph {
  std::vector<MothEmuNode> nodes;
  std::vector<int> devices; /* of each branch */
};
struct MothEmuGraphExec {
  MothEmuGraph graph;
  std::vector<cudaStream_t> streams;
  MothEmuMarkRef last; /* one launch at a time */
};

namespace {

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
thread_local char this_thread; /* its address identifies the thread */

struct Captures {
  std::vector<std::shared_ptr<MothEmuCapture>> active;
  std::unordered_set<cudaGraph_t> graphs;
  std::unordered_set<cudaGraphExec_t> execs;
  unsigned long long ids = 0;
};
Captures &captures = *new Captures;

/* Ends a capture: detaches it from its streams and events. */
void leave(const std::shared_ptr<MothEmuCapture> &capture) {
  for (cudaStream_t s : capture->streams) {
    s->capture.reset();
    s->tail.clear();
  }
  capture->origin = nullptr;
  auto &a = captures.active;
  a.erase(std::find(a.begin(), a.end(), capture));
}

/* Whether all captured branches were joined to the origin. */
bool joined(const MothEmuCapture &c) {
  std::vector<char> reached(c.nodes.size());
  for (int i : c.origin->tail)
    reached[(size_t)i] = 1;
  for (size_t i = c.nodes.size(); i-- > 0;)
    if (reached[i])
      for (int a : c.nodes[i].after)
        reached[(size_t)a] = 1;
  return std::find(reached.begin(), reached.end(), 0) == reached.end();
}

} // namespace

cudaError_t moth_emu_capture(cudaStream_t s, MothEmuWork work) {
  MothEmuCapture *c = s->capture.get();
  if (c->invalid)
    return cudaErrorStreamCaptureInvalidated;
  auto branch = std::find(c->streams.begin(), c->streams.end(), s) - c->streams.begin();
  c->nodes.push_back({std::move(work), s->tail, (int)branch});
  s->tail.assign(1, (int)c->nodes.size() - 1);
  return cudaSuccess;
}
void moth_emu_join(cudaStream_t s, const std::shared_ptr<MothEmuCapture> &capture) {
  s->capture = capture;
  s->tail.clear();
  capture->streams.push_back(s);
}
cudaError_t moth_emu_spoil(cudaStream_t s, cudaError_t e) {
  if (!s->capture)
    return e;
  if (s->capture->invalid)
    return cudaErrorStreamCaptureInvalidated;
  s->capture->invalid = true;
  return e;
}
cudaError_t moth_emu_spoil_blocking(int device) {
  for (auto &c : captures.active)
    for (cudaStream_t s : c->streams)
      if (s->device == device && !(s->flags & cudaStreamNonBlocking))
        return moth_emu_spoil(s, cudaErrorStreamCaptureImplicit);
  return cudaSuccess;
}
cudaError_t moth_emu_unsafe(void) {
  cudaError_t e = cudaSuccess;
  for (auto &c : captures.active) {
    bool own = c->thread == &this_thread && c->mode != cudaStreamCaptureModeRelaxed;
    bool any = c->mode == cudaStreamCaptureModeGlobal;
    if (thread_mode == cudaStreamCaptureModeRelaxed ||
        !(own || (any && thread_mode == cudaStreamCaptureModeGlobal)))
      continue;
    c->invalid = true;
    e = cudaErrorStreamCaptureUnsupported;
  }
  return e;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
  MOTH_EMU_ENTER();
  std::swap(thread_mode, *mode);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode) {
  MOTH_EMU_ENTER();
  if (!s)
    return moth_emu_note(cudaErrorStreamCaptureUnsupported);
  MOTH_EMU_TRY(moth_emu_stream(s, &s));
  if (s->capture)
    return moth_emu_note(cudaErrorInvalidValue);
  auto c = std::make_shared<MothEmuCapture>();
  c->id = ++captures.ids;
  c->mode = mode;
  c->origin = s;
  c->thread = &this_thread;
  moth_emu_join(s, c);
  captures.active.push_back(c);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph) {
  MOTH_EMU_ENTER();
  *graph = nullptr;
  MOTH_EMU_TRY(moth_emu_stream(s, &s));
  std::shared_ptr<MothEmuCapture> c = s->capture;
  if (!c)
    return moth_emu_note(cudaErrorInvalidValue);
  if (c->origin != s)
    return moth_emu_note(moth_emu_spoil(s, cudaErrorStreamCaptureUnmatched));
  if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != &this_thread)
    return moth_emu_note(moth_emu_spoil(s, cudaErrorStreamCaptureWrongThread));
  bool whole = joined(*c);
  std::vector<int> devices;
  for (cudaStream_t branch : c->streams)
    devices.push_back(branch->device);
  leave(c);
  if (c->invalid)
    return moth_emu_note(cudaErrorStreamCaptureInvalidated);
  if (!whole)
    return moth_emu_note(cudaErrorStreamCaptureUnjoined);
  *graph = new MothEmuGraph{std::move(c->nodes), devices};
  captures.graphs.insert(*graph);
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus *status,
                                     unsigned long long *id) {
  MOTH_EMU_ENTER();
  MOTH_EMU_TRY(moth_emu_stream(s, &s));
  *status = !s->capture           ? cudaStreamCaptureStatusNone
            : s->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                  : cudaStreamCaptureStatusActive;
  if (id)
    *id = s->capture ? s->capture->id : 0;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *status) {
  return cudaStreamGetCaptureInfo(s, status, nullptr);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n) {
  MOTH_EMU_ENTER();
  if (!captures.graphs.count(graph))
    return moth_emu_note(cudaErrorInvalidValue);
  size_t all = graph->nodes.size();
  for (size_t i = 0; nodes && i < *n; i++)
    nodes[i] = i < all ? &graph->nodes[i] : nullptr;
  *n = all;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
  MOTH_EMU_ENTER();
  MOTH_EMU_TRY(moth_emu_unsafe());
  if (!captures.graphs.count(graph))
    return moth_emu_note(cudaErrorInvalidValue);
  *exec = new MothEmuGraphExec{*graph, {}, nullptr};
  for (int device : graph->devices)
    (*exec)->streams.push_back(moth_emu_stream_new(device, cudaStreamNonBlocking, 0));
  captures.execs.insert(*exec);
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t s) {
  MOTH_EMU_ENTER();
  MOTH_EMU_TRY(moth_emu_stream(s, &s));
  return captures.execs.count(exec) ? cudaSuccess : moth_emu_note(cudaErrorInvalidValue);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
  MOTH_EMU_ENTER();
  MOTH_EMU_TRY(moth_emu_stream(s, &s));
  if (!captures.execs.count(exec))
    return moth_emu_note(cudaErrorInvalidValue);
  if (s->capture)
    return moth_emu_note(moth_emu_spoil(s, cudaErrorStreamCaptureUnsupported));
  MothEmuMarkRef begin;
  MOTH_EMU_TRY(moth_emu_put(s, nullptr, {exec->last}, &begin));
  std::vector<MothEmuMarkRef> marks(exec->graph.nodes.size());
  for (size_t i = 0; i < marks.size(); i++) {
    const MothEmuNode &node = exec->graph.nodes[i];
    std::vector<MothEmuMarkRef> after{begin};
    for (int a : node.after)
      after.push_back(marks[(size_t)a]);
    MOTH_EMU_TRY(moth_emu_put(exec->streams[(size_t)node.branch], node.work, after, &marks[i]));
  }
  MOTH_EMU_TRY(moth_emu_put(s, nullptr, marks, &exec->last));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  MOTH_EMU_ENTER();
  if (!captures.graphs.erase(graph))
    return moth_emu_note(cudaErrorInvalidValue);
  delete graph;
  return cudaSuccess;
}
/* Queued launches still run: they own their work. */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  MOTH_EMU_ENTER();
  if (!captures.execs.erase(exec))
    return moth_emu_note(cudaErrorInvalidValue);
  for (cudaStream_t s : exec->streams)
    moth_emu_stream_delete(s);
  delete exec;
  return cudaSuccess;
}
