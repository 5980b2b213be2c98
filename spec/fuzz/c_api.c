/* The frame of the program that c_api.lua writes: what arguments are chosen from, what becomes of results. */
#include <math.h>
#include <moth.h>
#include <moth_ops.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FUNCTIONS = 1, LENGTH = 24, POOL = 24 };
typedef void (*Release)(void *ctx);
typedef MothStatus (*Task)(void *ctx);

/* By their names without moth_: most are ops. */
static const char *const names[FUNCTIONS] = {"" /* THE NAMES */};

static uint64_t state;
static uint64_t below(uint64_t n) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (state >> 33) % n;
}

static const char *name = "", *last = "";
static MothTensor *pool[POOL], *lists[4][LENGTH], *outs[LENGTH];
static MothValue results[LENGTH], arrays[LENGTH];
static MothGenerator *mine;
static MothMemStats stats;
static MothMeta metas[MOTH_MAX_RESULTS];
static bool recording;
static uint64_t words[2];
static MothStream *streams[3], *new_stream; /* the default one, and two more */
static MothEvent *events[2], *new_event;
static bool flag;
static double milliseconds;
static int64_t numbers[4][LENGTH];
static _Alignas(64) double buffer[64];

static int64_t hook_id;
static MothStatus grad_hook(void *ctx, MothTensor *grad, MothTensor **out) {
  (void)ctx;
  if (below(2))
    moth_tensor_retain(*out = grad);
  return MOTH_OK;
}
static MothStatus leaf_hook(void *ctx, MothTensor *leaf) {
  (void)ctx, (void)leaf;
  return MOTH_OK;
}
static MothStatus callback(void *ctx, MothStatus status) {
  (void)ctx, (void)status;
  return MOTH_OK;
}
static MothStatus pack(void *ctx, MothTensor *t, void **packed) {
  (void)ctx;
  moth_tensor_retain(t);
  *packed = t;
  return MOTH_OK;
}
static MothStatus unpack(void *ctx, void *packed, MothTensor **out) {
  (void)ctx;
  moth_tensor_retain(*out = packed);
  return MOTH_OK;
}
static void drop_packed(void *ctx, void *packed) {
  (void)ctx;
  moth_tensor_release(packed);
}
static const MothSavedTensorsHooks saved_hooks = {pack, unpack, drop_packed, NULL, NULL};

static MothTensor *tensor(void) {
  return below(8) ? pool[below(POOL)] : NULL;
}
static MothTensor **tensors(void) {
  MothTensor **list = lists[below(4)];
  bool holes = !below(3);
  for (int i = 0; i < LENGTH; i++)
    list[i] = holes ? tensor() : pool[below(POOL)];
  return below(8) ? list : NULL;
}
static MothStream *stream(void) {
  return below(8) ? streams[below(3)] : NULL;
}
static void drop_stream(void) {
  moth_stream_release(new_stream);
  new_stream = NULL;
}
static void drop_event(void) {
  moth_event_free(new_event);
  new_event = NULL;
}
static MothStatus task(void *ctx) {
  (void)ctx;
  return MOTH_OK;
}
static MothGenerator *generator(void) {
  return below(3) ? NULL : below(2) ? mine : moth_default_generator();
}
static const char *string(void) {
  static const char *const all[] = {"",        "mean", "sum", "none", "add",     "constant",
                                    "reflect", "tanh", "ij",  "%s%n", "generic", "i,j->ij"};
  static char big[5000];
  memset(big, 'x', sizeof big - 1);
  return !below(6) ? NULL : !below(12) ? big : all[below(sizeof all / sizeof *all)];
}
/* Sizes that are either small or too large to be there: nothing takes the machine's memory. */
static int64_t integer(void) {
  static const int64_t wild[] = {INT64_MIN, INT64_MAX, INT64_MAX / 2, -1, -2, 100, INT32_MIN};
  return below(3) ? (int64_t)below(4) : wild[below(sizeof wild / sizeof *wild)];
}
static const int64_t *sizes(void) {
  int64_t *list = numbers[below(4)];
  bool good = below(2);
  for (int i = 0; i < LENGTH; i++)
    list[i] = i > 3 ? (int64_t)below(2) : good ? (int64_t)below(4) : integer();
  return below(8) ? list : NULL;
}
static int count(void) {
  static const int wild[] = {-1, INT32_MIN, INT32_MAX, 17, 16, 24, 7};
  return below(3) ? (int)below(4) : wild[below(sizeof wild / sizeof *wild)];
}
static int enumeration(void) {
  return below(4) ? (int)below(10) : (int)integer();
}
static MothDevice device(void) {
  return below(2) ? (MothDevice){MOTH_CPU, 0}
                  : (MothDevice){(uint8_t)below(256), (uint8_t)below(3)};
}
static double number(void) {
  static const double all[] = {0,   -0.0,     1,         -1,    0.5,    2,
                               NAN, INFINITY, -INFINITY, 1e300, 1e-300, 0x1p63};
  return all[below(sizeof all / sizeof *all)];
}
static void *bytes(void) {
  return below(4) ? (char *)buffer + (below(4) ? 0 : 1) : NULL;
}
static const MothOp *op(void) {
  return below(8) ? moth_op_find(names[below(FUNCTIONS)]) : NULL;
}
static MothValue value(void) {
  MothValue v = moth_v_none();
  switch (below(12)) {
  case 0:
    return v;
  case 1:
    return moth_v_bool(below(2));
  case 2:
    return moth_v_int(integer());
  case 3:
    return moth_v_float(number());
  case 4:
    v.tag = MOTH_V_TENSOR; /* even if it is NULL */
    v.u.t = tensor();
    return v;
  case 5:
    v = moth_v_ints(sizes(), (uint32_t)count());
    v.n = v.u.ints && v.n > LENGTH ? LENGTH : v.n;
    return v;
  case 6:
    v = moth_v_tensors(tensors(), (uint32_t)count());
    v.n = v.u.tensors && v.n > LENGTH ? LENGTH : v.n;
    return v;
  case 7:
    return moth_v_string(string());
  case 8:
    return moth_v_dtype((MothDType)enumeration());
  case 9:
    return moth_v_device(device());
  case 10:
    return moth_v_generator(generator());
  default:
    v.tag = (uint32_t)below(99) + MOTH_V_GENERATOR + 1;
    return v;
  }
}
static MothValue *values(void) {
  for (int i = 0; i < LENGTH; i++)
    arrays[i] = value();
  return below(8) ? arrays : NULL;
}

static void nothing(void *ctx) {
  (void)ctx;
}
static MothStatus refuse(MothCall *c) {
  (void)c;
  return MOTH_ERR_STATE;
}

typedef void (*Define)(MothLibrary *);
static void define(MothLibrary *m) {
  moth_def(m, string(), below(2) ? refuse : NULL);
}
static const MothOp *defined;
static MothOpDef definition = {.schema = "fuzz::op(Tensor x) -> Tensor", .all = refuse};

static void drop(MothTensor **list) {
  for (int i = 0; i < LENGTH; i++) {
    moth_tensor_release(list[i]);
    list[i] = NULL;
  }
}
/* Gradients may form a circle: what leaves the pool must not have one. */
static void put(int i, MothTensor *t) {
  if (pool[i])
    moth_tensor_set_grad(pool[i], NULL);
  moth_tensor_release(pool[i]);
  pool[i] = t;
}

static void check(const char *what, MothStatus s) {
  if (s != MOTH_OK && (s > MOTH_ERR_HOST || !moth_last_error()[0])) {
    fprintf(stderr, "%s: status %d without a message\n", what, (int)s);
    abort();
  }
  if (s != MOTH_OK)
    memset(outs, 0, sizeof outs); /* nothing is owned after an error */
  for (int i = 0; i < LENGTH; i++) {
    if (s == MOTH_OK && results[i].tag == MOTH_V_TENSOR)
      moth_tensor_release(results[i].u.t);
    results[i] = moth_v_none();
  }
}

/* Everything again from the start: a fixed set of tensors of all kinds. */
static void fill(void) {
  moth_stream_set_current(streams[0]);
  moth_device_synchronize((MothDevice){MOTH_CPU, 0});
  const int64_t shapes[][3] = {{2, 3, 1}, {3, 0, 2}, {3, 3, 3}, {1, 1, 1}, {2, 2, 3}, {4, 3, 2}};
  for (int i = 0; i < POOL; i++) {
    MothTensor *t;
    if (moth_tensor_new(i % 4, shapes[i % 6], (MothDType)(i % MOTH_NDTYPES),
                        (MothDevice){MOTH_CPU, 0}, &t) != MOTH_OK)
      abort();
    if (moth_zero_(t) != MOTH_OK)
      abort();
    if (i % 3 == 0 && moth_dtype_is_float(moth_tensor_dtype(t)))
      moth_tensor_set_requires_grad(t, true);
    put(i, t);
  }
}

static void call(uint64_t which) {
  switch (which) {
  default: /* THE CALLS */
    break;
  }
}

int main(int argc, char **argv) {
  static uint64_t seen[FUNCTIONS];
  uint64_t calls = argc > 2 ? strtoull(argv[2], NULL, 10) : 10000, ok = 0;
  state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  bool trace = getenv("MOTH_TRACE") != NULL;
  recording = argc < 4;
  moth_set_grad_enabled(recording);
  moth_set_num_threads(1);
  mine = moth_generator_new(3);
  moth_stream_default((MothDevice){MOTH_CPU, 0}, &streams[0]);
  for (int i = 0; i < 2; i++) {
    moth_stream_new((MothDevice){MOTH_CPU, 0}, 0, &streams[i + 1]);
    moth_event_new(MOTH_CPU, true, &events[i]);
  }
  for (uint64_t i = 0; i < calls; i++) {
    if (i % 2000 == 0)
      fill();
    uint64_t which = below(FUNCTIONS);
    if (trace)
      fprintf(stderr, "%llu: %llu after %s\n", (unsigned long long)i, (unsigned long long)which,
              last);
    seen[which]++;
    call(which);
    last = name;
    for (int k = 0; k < LENGTH; k++)
      if (outs[k]) {
        ok++;
        if (!below(4) && moth_tensor_numel(outs[k]) < 1000) {
          put((int)below(POOL), outs[k]);
          outs[k] = NULL;
        }
      }
    drop(outs);
  }
  for (int i = 0; i < POOL; i++)
    put(i, NULL);
  moth_stream_set_current(streams[0]);
  for (int i = 0; i < 3; i++) {
    moth_stream_synchronize(streams[i]);
    moth_stream_release(streams[i]);
  }
  for (int i = 0; i < 2; i++)
    moth_event_free(events[i]);
  moth_generator_release(mine);
  uint64_t missed = 0;
  for (int i = 0; i < FUNCTIONS; i++)
    missed += !seen[i];
  printf("%llu calls of %d functions, %llu not called, %llu results\n", (unsigned long long)calls,
         FUNCTIONS, (unsigned long long)missed, (unsigned long long)ok);
  return 0;
}
