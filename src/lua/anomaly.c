/* Anomaly mode (lua/moth/autograd/anomaly.lua): each node that is recorded keeps the frames of the program that called
 * its op, as numbers; each gradient is looked at as soon as it is there. Both are cheap enough to be left on for a
 * training: nothing is formatted, and nothing of Lua runs, until something is wrong. */
#include <string.h>

#include "core/alloc.h"
#include "lua/moth_lua.h"
#include "profile/table.h"

enum { FRAMES = 12, MAKERS = 4, KNOWN = 64 };

/* The frames that a node keeps, the innermost first: numbers of names in `sources`, and lines. Of a node that was made by
 * the backward of another one: the name of that, and of its frames MAKERS at least, behind those of its own. */
typedef struct Kept {
  int32_t n, own, maker; /* frames, the node's own ones of these; a number in `sources`, or -1 */
  struct {
    int32_t source, line;
  } frames[FRAMES];
} Kept;

typedef struct Watcher {
  MothWatcher w;
  MothLuaRef *found; /* found(node, frames[, output, gradient]) */
  bool checks, inf;
  const MothNode *running; /* in backward */
  struct {
    const char *from, *own;
    int32_t number;
  } known[KNOWN]; /* sources that were looked up last */
} Watcher;

static MothNames sources = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The number of a source. Its address may be used again for another text: that is compared. */
static int32_t source_of(Watcher *w, const char *text) {
  uintptr_t at = (uintptr_t)text >> 4;
  size_t slot = (at ^ at >> 6) % KNOWN;
  if (w->known[slot].from != text || strcmp(w->known[slot].own, text) != 0) {
    const char *own = "";
    int32_t number = moth_names_add(&sources, -1, text, 0, &own);
    if (number < 0)
      return -1;
    w->known[slot].from = text;
    w->known[slot].own = own;
    w->known[slot].number = number;
  }
  return w->known[slot].number;
}

static size_t size_of(int32_t n) {
  Kept *k = NULL;
  return sizeof *k - sizeof k->frames + sizeof k->frames[0] * (size_t)n;
}

static void release_kept(void *ctx) {
  moth_free(ctx, size_of(((Kept *)ctx)->n));
}

static MothStatus keep(Watcher *w, MothNode *n) {
  lua_State *L = moth_lua_current;
  MothLuaFrame found[FRAMES];
  if (!L || !lua_checkstack(L, 8))
    return MOTH_OK;
  const Kept *of = w->running ? moth_node_note(w->running, release_kept) : NULL;
  int32_t count = moth_lua_frames(L, FRAMES, found), more = of ? of->own : 0;
  if (more > 0 && count > FRAMES - MAKERS)
    count = FRAMES - MAKERS;
  more = more < FRAMES - count ? more : FRAMES - count;
  Kept *k = moth_alloc(size_of(count + more));
  if (!k)
    return moth_no_memory(size_of(count + more));
  k->n = count + more;
  k->own = count;
  k->maker = more > 0 ? source_of(w, w->running->name) : -1;
  if (more > 0)
    memcpy(k->frames + count, of->frames, sizeof k->frames[0] * (size_t)more);
  for (int32_t i = 0; i < count; i++) {
    k->frames[i].source = source_of(w, found[i].source);
    k->frames[i].line = found[i].line;
  }
  MothHook note = {.kind = MOTH_HOOK_NOTE, .release = release_kept, .ctx = k};
  MothStatus s = moth_node_add_hook(n, note, NULL);
  if (s != MOTH_OK)
    release_kept(k);
  return s;
}

/* Pushes "train.lua:12\n…" of a node, or nil. */
static void push_frames(lua_State *L, const MothNode *n) {
  const Kept *k = moth_node_note(n, release_kept);
  char name[256];
  luaL_Buffer b;
  if (!k) {
    lua_pushnil(L);
    return;
  }
  luaL_buffinit(L, &b);
  for (int32_t i = 0; i < k->n; i++) {
    if (i == k->own && k->maker >= 0) {
      lua_pushfstring(L, "in the backward of '%s', whose forward call was made here:\n",
                      sources.list[k->maker].text);
      luaL_addvalue(&b);
    }
    const char *source = k->frames[i].source < 0 ? "?" : sources.list[k->frames[i].source].text;
    luaL_addstring(&b, moth_lua_source_name(source, name, sizeof name));
    lua_pushfstring(L, ":%d\n", k->frames[i].line);
    luaL_addvalue(&b);
  }
  luaL_pushresult(&b);
}

/* --- what is wrong with elements --------------------------------------------------------------------- */

enum { FINE, WRONG, UNKNOWN };

/* Whether floats among n are NaN, or also Inf, by their bits: without the sign, Inf is all ones in the exponent, NaN is
 * more than that. */
#define LOOK(name, Word, Words, exponent)                                                          \
  typedef Word Words __attribute__((vector_size(16)));                                             \
  static int name(const void *data, int64_t n, bool inf) {                                         \
    const Word *x = data, unsign = (Word)(((uint64_t)1 << (8 * sizeof(Word) - 1)) - 1),            \
               least = (Word)((exponent) - (inf ? 1 : 0));                                         \
    enum { LANES = 16 / sizeof(Word) };                                                            \
    Words found = {0}, v;                                                                          \
    int64_t i = 0;                                                                                 \
    for (; i + LANES <= n; i += LANES) {                                                           \
      memcpy(&v, x + i, sizeof v);                                                                 \
      found |= (Words)((v & unsign) > least);                                                      \
    }                                                                                              \
    Word any = 0;                                                                                  \
    for (int k = 0; k < LANES; k++)                                                                \
      any |= found[k];                                                                             \
    for (; i < n; i++)                                                                             \
      any |= (Word)(x[i] & unsign) > least;                                                        \
    return any ? WRONG : FINE;                                                                     \
  }
LOOK(look_half, int16_t, Halves, 0x7c00)
LOOK(look_bfloat, int16_t, Bfloats, 0x7f80)
LOOK(look_float, int32_t, Floats, 0x7f800000)
LOOK(look_double, int64_t, Doubles, 0x7ff0000000000000)

/* UNKNOWN: it is not a row of floats on the CPU. */
static int look(const MothTensor *t, bool inf) {
  uint32_t plain = MOTH_KEY_CPU | MOTH_KEY_AUTOGRAD | MOTH_KEY_OPT_IN;
  if (t->keys & ~plain || !moth_tensor_is_contiguous(t))
    return UNKNOWN;
  const void *data = moth_tensor_data(t);
  int64_t n = moth_tensor_numel(t);
  switch ((MothDType)t->dtype) {
  case MOTH_FLOAT16:
    return look_half(data, n, inf);
  case MOTH_BFLOAT16:
    return look_bfloat(data, n, inf);
  case MOTH_FLOAT32:
    return look_float(data, n, inf);
  case MOTH_COMPLEX64:
    return look_float(data, 2 * n, inf);
  case MOTH_FLOAT64:
    return look_double(data, n, inf);
  case MOTH_COMPLEX128:
    return look_double(data, 2 * n, inf);
  default:
    return UNKNOWN;
  }
}

/* --- the watcher ----------------------------------------------------------------------------------------- */

static void drop(MothFrame *f) {
  Watcher *w = (Watcher *)f;
  moth_lua_ref_release(w->found);
  moth_free(w, sizeof *w);
}

/* Nodes of other states on this thread are theirs. */
static bool is_seen(const Watcher *w) {
  return moth_lua_current && moth_lua_ref_is_own(moth_lua_current, w->found);
}

static MothStatus made(void *ctx, MothNode *n) {
  return is_seen(ctx) ? keep(ctx, n) : MOTH_OK;
}

static MothStatus push_found(lua_State *L, const Watcher *w, MothNode *n) {
  MOTH_TRY(moth_lua_push_hook(L, w->found, 4));
  moth_lua_push_node(L, n);
  push_frames(L, n);
  return MOTH_OK;
}

static MothStatus begins(void *ctx, MothNode *n, MothTensor *const *grads, int ngrads) {
  (void)grads, (void)ngrads;
  ((Watcher *)ctx)->running = n;
  return MOTH_OK;
}

static MothStatus ended(void *ctx, MothNode *n, MothTensor *const *grads, int ngrads,
                        MothStatus status) {
  Watcher *w = ctx;
  w->running = NULL;
  lua_State *L = moth_lua_current;
  if (!is_seen(w))
    return status;
  if (status != MOTH_OK) { /* the first error counts */
    if (!lua_checkstack(L, 8))
      return status;
    moth_lua_push_parked(L);
    if (push_found(L, w, n) == MOTH_OK && moth_lua_pcall(L, 2, 0))
      lua_pop(L, 1);
    moth_lua_pop_parked(L);
    return status;
  }
  int output = 0;
  for (int i = moth_lua_next_input(n, -1); w->checks && i >= 0 && i < ngrads;
       i = moth_lua_next_input(n, i), output++) {
    if (!grads[i] || look(grads[i], w->inf) == FINE)
      continue;
    MOTH_TRY(push_found(L, w, n));
    lua_pushinteger(L, output);
    moth_tensor_retain(grads[i]);
    moth_lua_push_tensor(L, grads[i]);
    MOTH_TRY(moth_lua_call(L, 4, 0));
  }
  return MOTH_OK;
}

/* watch_anomalies(found, checks, inf) -> frame. found(node, frames) when a node has failed; found(node, frames, output,
 * gradient), the number from 0, when the gradient may have NaN (with inf: Inf): it looks closer, and raises the error. */
int moth_lua_watch_anomalies(lua_State *L) {
  moth_lua_type(L, 1, LUA_TFUNCTION);
  moth_lua_sync(L);
  Watcher *w = moth_alloc(sizeof *w);
  if (!w)
    return moth_lua_raise(L, moth_no_memory(sizeof *w));
  *w = (Watcher){.w = {.frame = {.refs = 2, .drop = drop},
                       .made = made,
                       .begin = begins,
                       .end = ended,
                       .ctx = w},
                 .checks = lua_toboolean(L, 2),
                 .inf = lua_toboolean(L, 3)};
  lua_pushvalue(L, 1);
  w->found = moth_lua_ref_new(L);
  moth_lua_push_watcher(L, &w->w);
  return 1;
}
