/* What a call of a collective must satisfy on its own rank. */
#include "comm/comm.h"
#include "comm/nccl.h"
#include "core/error.h"

static MothStatus check_count(const char *op, const char *what, int64_t n, int64_t want,
                              const char *why) {
  if (n == want)
    return MOTH_OK;
  return moth_fail(MOTH_ERR_VALUE, "[%s] %s has %lld elements, expected %lld: %s", op, what,
                   (long long)n, (long long)want, why);
}

static MothStatus check_splits(const char *op, const char *what, const int64_t *splits, int size,
                               int64_t n) {
  int64_t sum = 0;
  for (int i = 0; i < size; i++) {
    if (splits[i] < 0 || __builtin_add_overflow(sum, splits[i], &sum))
      return moth_fail(MOTH_ERR_VALUE, "[%s] a split of %s is negative", op, what);
  }
  return check_count(op, what, n, sum, "the sum of its splits");
}

static MothStatus check_rank(const MothGroup *g, const char *op, const char *what, int rank) {
  if (rank >= 0 && rank < g->size)
    return MOTH_OK;
  return moth_fail(MOTH_ERR_VALUE, "[%s] %s %d is none of the %d ranks, which count from 0", op,
                   what, rank, g->size);
}

MothStatus moth_comm_check(const MothGroup *g, const MothCommRequest *r) {
  const char *op = moth_comm_op_name(r->op);
  const int64_t size = g->size;
  if (r->device.type != MOTH_CPU &&
      (r->device.type != g->device.type || r->device.index != g->device.index))
    return moth_fail(MOTH_ERR_TYPE, "[%s] the tensors are on another device than the group", op);
  if (r->device.type == MOTH_CUDA)
    MOTH_TRY(moth_nccl_check(r));
  bool at_root = r->root == g->rank;
  switch (r->op) {
  case MOTH_COMM_REDUCE_SCATTER:
  case MOTH_COMM_REDUCE:
  case MOTH_COMM_ALL_REDUCE: {
    MothStatus s = moth_comm_check_reduce(r->reduce, r->dtype);
    if (s != MOTH_OK)
      return moth_fail(s, "[%s] %s", op, moth_last_error());
    break;
  }
  default:
    break;
  }
  switch (r->op) {
  case MOTH_COMM_ALL_REDUCE:
    return check_count(op, "the output", r->nout, r->nin, "as many as the input");
  case MOTH_COMM_BROADCAST:
    MOTH_TRY(check_rank(g, op, "src", r->root));
    return check_count(op, "the output", r->nout, r->nin, "as many as the input");
  case MOTH_COMM_REDUCE:
    MOTH_TRY(check_rank(g, op, "dst", r->root));
    return at_root ? check_count(op, "the output", r->nout, r->nin, "as many as the input")
                   : MOTH_OK;
  case MOTH_COMM_ALL_GATHER:
    return check_count(op, "the output", r->nout, r->nin * size, "the input's times the ranks");
  case MOTH_COMM_REDUCE_SCATTER:
    return check_count(op, "the input", r->nin, r->nout * size, "the output's times the ranks");
  case MOTH_COMM_GATHER:
    MOTH_TRY(check_rank(g, op, "dst", r->root));
    return at_root ? check_count(op, "the output", r->nout, r->nin * size,
                                 "the input's times the ranks")
                   : MOTH_OK;
  case MOTH_COMM_SCATTER:
    MOTH_TRY(check_rank(g, op, "src", r->root));
    return at_root ? check_count(op, "the input", r->nin, r->nout * size,
                                 "the output's times the ranks")
                   : MOTH_OK;
  case MOTH_COMM_ALL_TO_ALL:
    if (r->in_splits && r->out_splits) {
      MOTH_TRY(check_splits(op, "the input", r->in_splits, g->size, r->nin));
      MOTH_TRY(check_splits(op, "the output", r->out_splits, g->size, r->nout));
      return check_count(op, "what this rank receives from itself", r->out_splits[g->rank],
                         r->in_splits[g->rank], "as many as it sends itself");
    }
    if (r->nin % size)
      return moth_fail(MOTH_ERR_VALUE,
                       "[%s] %lld elements are not divisible among %lld ranks: give splits", op,
                       (long long)r->nin, (long long)size);
    return check_count(op, "the output", r->nout, r->nin, "as many as the input, without splits");
  case MOTH_COMM_PERMUTE:
    MOTH_TRY(check_rank(g, op, "the target", (int)r->in_splits[0]));
    MOTH_TRY(check_rank(g, op, "the source", (int)r->out_splits[0]));
    return check_count(op, "the output", r->nout, r->nin, "as many as the input");
  case MOTH_COMM_SEND:
  case MOTH_COMM_RECV:
    if (r->op == MOTH_COMM_RECV && r->root == -1)
      return MOTH_OK;
    MOTH_TRY(check_rank(g, op, r->op == MOTH_COMM_SEND ? "dst" : "src", r->root));
    if (at_root)
      return moth_fail(MOTH_ERR_VALUE, "[%s] rank %d is this rank itself", op, r->root);
    return MOTH_OK;
  default:
    return MOTH_OK;
  }
}
