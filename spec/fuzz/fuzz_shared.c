/* libFuzzer: what a rank of this host leaves in the memory that it shares, in the middle of a job: its ends of the rings,
 * which only it should move, what lies in them, and what it says that it has called last. The first byte chooses the call
 * that waits, the second what is in order; then the ring's two numbers, and its bytes, which are the last call's too.
 * Sources: src/comm/group.c src/comm/request.c src/comm/reduce.c src/comm/tcp.c src/comm/local.c src/comm/fake.c src/comm/wire.c src/comm/thread.c src/comm/store_client.c src/comm/store_token.c src/comm/store_wire.c src/comm/tcp_collectives.c src/comm/tcp_steps.c src/comm/tcp_control.c src/comm/transport.c src/comm/interfaces.c
 */
#include "comm/shared.c"

#include "comm/tcp.h"
#include "comm/tcp_steps.h"
#include "comm/wire.h"
#include "spec/fuzz/job.h"

static MothShared *mine, *theirs;

/* The memory of ranks 0 and 1, once: a file and a mapping take longer than an input. */
static void open_both(void) {
  int fd[2];
  uint64_t nonce[2];
  mine = moth_shared_new(0, 2, &fd[0], &nonce[0]);
  theirs = moth_shared_new(1, 2, &fd[1], &nonce[1]);
  if (!mine || !theirs || !moth_shared_open(mine, 1, getpid(), fd[1], nonce[1]))
    abort();
}

static const MothCommLast *last_of(MothGroup *g, int rank) {
  (void)g;
  return moth_shared_last(mine, rank);
}

/* What rank 1 has written behind the place `at`: heads and data each begin at a line. */
static void write_ring(const uint8_t *bytes, size_t n, uint64_t at) {
  Ends *e = ends(mine, 1, 0);
  at = at / LINE % ((mine->capacity - 8192) / LINE) * LINE;
  char *to = ring(mine, 1, 0) + at;
  size_t head = n < sizeof(MothCommHead) ? n : sizeof(MothCommHead);
  memset(to, 0, 8192);
  memcpy(to, bytes, head);
  memcpy(to + lines((int64_t)head), bytes + head, n - head);
  if (n >= sizeof(MothCommLast))
    memcpy(moth_shared_last(mine, 1), bytes, sizeof(MothCommLast));
  mine->own[1].taken = at;
  atomic_store(&e->taken, at);
  atomic_store(&e->written, at + (uint64_t)lines((int64_t)n));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
  if (n < 18)
    return 0;
  if (!mine)
    open_both();
  MothTcpPeer peers[2] = {{.data = -1, .control = -1}, {.data = -1, .control = -1}};
  MothTcp e = {.peers = peers, .alarm = {-1, -1}, .bell = {-1, -1}, .shared = mine};
  MothEngine engine = moth_engine_fake;
  engine.last_of = last_of;
  MothGroup *g = job_group(&e, &engine);
  MothWork *w = job_work(g, job_collectives[bytes[0] % 6], 4);
  uint64_t at = 0;
  if (bytes[1] & 2)
    memcpy(&at, bytes + 10, 8);
  write_ring(bytes + 18, n - 18, at);
  if (bytes[1] & 1)
    memcpy(&ends(mine, 1, 0)->written, bytes + 2, 8);
  if (bytes[1] & 8)
    memcpy(&ends(mine, 1, 0)->taken, bytes + 2, 8);
  if (bytes[1] & 4) /* of the ring that rank 0 writes */
    memcpy(&ends(mine, 0, 1)->taken, bytes + 10, 8);
  atomic_store(&peers[1].left, true);
  atomic_store(&peers[1].gone, true);
  (void)moth_tcp_run(g, w);
  moth_group_blame(g, 1, "rank 1 is gone"); /* reads what it has called last */
  mine->own[1].written = 0;
  atomic_store(&ends(mine, 0, 1)->written, 0);
  atomic_store(&ends(mine, 0, 1)->taken, 0);
  job_end(&e, g, w);
  return 0;
}
