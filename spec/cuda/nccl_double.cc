// What spec/cuda/nccl_spec.lua takes for NCCL on the emulation of CUDA: a world of one rank. With NCCL_DOUBLE=fail an
// all_reduce is refused.
#include <stdlib.h>
#include <string.h>

struct MothEmuStream;
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
int cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind kind, MothEmuStream *s);

struct Id {
  char bytes[128];
};

static const void *sent;
static int size_of(int type) {
  static const int sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return sizes[type];
}
static int move(const void *from, void *to, size_t n, MothEmuStream *s) {
  return from == to || n == 0 ? 0 : cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, s);
}
extern "C" {
int ncclGetUniqueId(Id *id) {
  memset(id, 7, sizeof *id);
  return 0;
}
int ncclCommInitRank(void **comm, int size, Id id, int rank) {
  *comm = malloc(1);
  return size == 1 && rank == 0 && id.bytes[127] == 7 ? 0 : 4;
}
int ncclCommDestroy(void *comm) {
  free(comm);
  return 0;
}
int ncclCommAbort(void *comm) {
  free(comm);
  return 0;
}
int ncclCommGetAsyncError(void *, int *error) {
  *error = 0;
  return 0;
}
const char *ncclGetErrorString(int) {
  return "invalid argument";
}
int ncclAllReduce(const void *in, void *out, size_t n, int type, int, void *, MothEmuStream *s) {
  const char *how = getenv("NCCL_DOUBLE");
  if (how && strcmp(how, "fail") == 0)
    return 6;
  return move(in, out, n * size_of(type), s);
}
int ncclBroadcast(const void *in, void *out, size_t n, int type, int, void *, MothEmuStream *s) {
  return move(in, out, n * size_of(type), s);
}
int ncclReduce(const void *in, void *out, size_t n, int type, int, int, void *, MothEmuStream *s) {
  return move(in, out, n * size_of(type), s);
}
int ncclAllGather(const void *in, void *out, size_t n, int type, void *, MothEmuStream *s) {
  return move(in, out, n * size_of(type), s);
}
int ncclReduceScatter(const void *in, void *out, size_t n, int type, int, void *,
                      MothEmuStream *s) {
  return move(in, out, n * size_of(type), s);
}
int ncclSend(const void *in, size_t, int, int, void *, MothEmuStream *) {
  sent = in;
  return 0;
}
int ncclRecv(void *out, size_t n, int type, int, void *, MothEmuStream *s) {
  return move(sent, out, n * size_of(type), s);
}
int ncclGroupStart(void) {
  return 0;
}
int ncclGroupEnd(void) {
  return 0;
}
}
