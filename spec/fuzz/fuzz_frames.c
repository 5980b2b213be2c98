/* libFuzzer: what a rank sends to another one, in the middle of a job: on the connection of messages, or on that of
 * collectives. The first byte chooses which, and the call that waits.
 * Sources: src/comm/group.c src/comm/request.c src/comm/reduce.c src/comm/tcp.c src/comm/local.c src/comm/fake.c src/comm/wire.c src/comm/thread.c src/comm/store_client.c src/comm/store_token.c src/comm/store_wire.c src/comm/shared.c src/comm/tcp_steps.c src/comm/transport.c src/comm/interfaces.c
 */
#include "comm/tcp_collectives.c"

#include "comm/tcp_control.c"

#include "spec/fuzz/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
  int ends[2];
  if (n < 1 || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0)
    return 0;
  MothTcpPeer peers[2] = {{.data = -1, .control = -1}, {.data = -1, .control = -1}};
  MothTcp e = {.peers = peers, .alarm = {-1, -1}, .bell = {-1, -1}};
  MothGroup *g = job_group(&e, &moth_engine_fake);
  moth_wire_prepare(ends[0]);
  if (write(ends[1], bytes + 1, n - 1) != (ssize_t)(n - 1))
    abort();
  shutdown(ends[1], SHUT_WR);
  bool messages = bytes[0] & 1;
  MothWork *w = job_work(g, messages ? MOTH_COMM_RECV : job_collectives[(bytes[0] >> 1) % 6], 4);
  if (messages) {
    Control c = {.e = &e, .g = g, .suspect = -1, .receives = w};
    c.last = &w->next;
    c.last_message = &c.messages;
    peers[1].control = ends[0];
    moth_work_retain(w);
    while (!atomic_load(&peers[1].gone) && !peers[1].holds)
      read_some(&c, 1);
    if (peers[1].work) /* its data did not all come */
      moth_work_release(peers[1].work);
    else if (c.receives)
      moth_work_release(w);
    while (c.messages) {
      Message *m = c.messages;
      c.messages = m->next;
      free(m->data);
      free(m);
    }
    while (peers[1].first) {
      MothTcpFrame *f = peers[1].first;
      peers[1].first = f->next;
      free(f);
    }
    free(peers[1].text);
    while (g->done) {
      MothWork *d = g->done;
      g->done = d->next;
      moth_work_release(d);
    }
  } else {
    atomic_store(&peers[1].left, true); /* or it waits for a word of who is gone */
    atomic_store(&peers[1].gone, true); /* it answers no question */
    peers[1].data = ends[0];
    (void)moth_tcp_run(g, w);
  }
  job_end(&e, g, w);
  close(ends[0]);
  close(ends[1]);
  return 0;
}
