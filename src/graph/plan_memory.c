/* Where the values of a plan lie: which have memory of their own, how long each lives, what shares the arena.
 *
 * Values that are never alive at the same time share bytes (arena.c). A result of a pointwise step takes over the buffer of an
 * operand that is read there for the last time.
 *
 * The arena is there for the whole run. Where that takes more at one time than blocks that come and go (large values at the
 * beginning, large outputs at the end), large buffers have blocks of their own. */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/arena.h"
#include "graph/blocks.h"
#include "graph/plan_steps.h"

enum { LARGE = 64 * 1024 };

static uint32_t root_of(const MothPlan *p, uint32_t id) {
  while (p->values[id].of != id)
    id = p->values[id].of;
  return id;
}

/* Whether results of the call have memory that nobody else has. */
static bool makes_fresh(const MothPlanCall *c) {
  return c->op->memory == MOTH_MEMORY_NEW && c->variant == MOTH_FUNCTIONAL && !c->op->defined &&
         !moth_op_writes(c->op);
}

/* Outputs and what may share memory with them are tensors of their own: from the last step to the first. */
static void mark_owned(MothPlan *p) {
  for (uint32_t i = 0; i < p->noutputs; i++)
    p->values[p->outputs[i]].owned = true;
  for (uint32_t i = p->nsteps; i-- > 0;) {
    MothPlanStep *s = &p->steps[i];
    if (s->kind == MOTH_STEP_VIEW && p->values[s->values[0]].owned)
      s->kind = MOTH_STEP_DISPATCHED;
    if (s->kind != MOTH_STEP_DISPATCHED || makes_fresh(&p->calls[s->call]))
      continue;
    for (uint32_t k = 0; k < s->nreads; k++)
      p->values[s->values[s->nresults + k]].owned = true;
  }
}

static MothPlanPlace place_of_result(const MothPlan *p, const MothPlanStep *s, uint32_t id) {
  if (s->kind == MOTH_STEP_DISPATCHED)
    return MOTH_PLACE_GIVEN;
  if (s->kind == MOTH_STEP_VIEW)
    return MOTH_PLACE_VIEW;
  bool here = p->values[id].fake->device.type == MOTH_CPU; /* as the arena is */
  return p->values[id].owned || !here ? MOTH_PLACE_FRESH : MOTH_PLACE_ARENA;
}

/* Places and lives. */
static MothStatus mark_lives(MothPlan *p) {
  for (uint32_t i = 0; i < p->nsteps; i++) {
    const MothPlanStep *s = &p->steps[i];
    for (uint32_t k = 0; k < s->nresults; k++) {
      MothPlanValue *v = &p->values[s->values[k]];
      if (v->place != MOTH_PLACE_NONE)
        continue; /* an argument that is written to */
      v->place = (uint8_t)place_of_result(p, s, s->values[k]);
      v->first = v->last = i;
      if (v->place != MOTH_PLACE_VIEW)
        v->of = s->values[k];
    }
    for (uint32_t k = 0; k < s->nreads; k++) {
      uint32_t id = s->values[s->nresults + k];
      if (p->values[id].place == MOTH_PLACE_NONE && p->values[id].temporary) {
        p->values[id].place = p->values[id].fake ? MOTH_PLACE_FRESH : MOTH_PLACE_ARENA;
        p->values[id].first = i;
      }
      if (p->values[id].place == MOTH_PLACE_NONE)
        return moth_fail(MOTH_ERR_STATE, "plan: step %u uses a value that no step before it makes",
                         i + 1);
      for (;; id = p->values[id].of) {
        p->values[id].last = i;
        if (p->values[id].of == id)
          break;
      }
    }
  }
  for (uint32_t i = 0; i < p->noutputs; i++) {
    MothPlanValue *v = &p->values[p->outputs[i]];
    if (v->place == MOTH_PLACE_NONE)
      return moth_fail(MOTH_ERR_STATE, "plan: no step makes output %u", i + 1);
    v->last = p->nsteps;
  }
  return MOTH_OK;
}

/* --- what is released ------------------------------------------------------------------------------------------ */

static bool has_tensor(const MothPlanValue *v) {
  return v->place == MOTH_PLACE_FRESH || v->place == MOTH_PLACE_GIVEN;
}

static bool is_input(const MothPlanValue *v) {
  return v->place == MOTH_PLACE_INPUT;
}

/* For each step a list of values that `fits` and that it uses last: their numbers, or those of inputs. */
static MothStatus list_ends(MothPlan *p, bool (*fits)(const MothPlanValue *v), bool inputs) {
  uint32_t *count = calloc((size_t)p->nsteps + 1, sizeof *count);
  MothStatus status = count ? MOTH_OK : moth_no_memory(((size_t)p->nsteps + 1) * sizeof *count);
  for (uint32_t i = 0; count && i < p->nvalues; i++)
    if (fits(&p->values[i]) && p->values[i].last < p->nsteps)
      count[p->values[i].last]++;
  for (uint32_t i = 0; i < p->nsteps && status == MOTH_OK; i++) {
    uint32_t *list = count[i] ? malloc(sizeof(uint32_t) * count[i]) : NULL;
    if (count[i] && !list)
      status = moth_no_memory(0);
    *(inputs ? &p->steps[i].ends : &p->steps[i].drops) = list;
  }
  for (uint32_t i = 0; i < p->nvalues && status == MOTH_OK; i++) {
    const MothPlanValue *v = &p->values[i];
    if (!fits(v) || v->last >= p->nsteps)
      continue;
    MothPlanStep *s = &p->steps[v->last];
    if (inputs)
      s->ends[s->nends++] = v->input;
    else
      s->drops[s->ndrops++] = i;
  }
  free(count);
  return status;
}

/* --- buffers of the arena --------------------------------------------------------------------------------------- */

/* Whether the value is its root's whole buffer, as `result` will be. */
static bool is_whole(const MothPlan *p, uint32_t id, const MothTensor *result) {
  const MothTensor *t = p->values[id].fake;
  int64_t from = 0;
  for (uint32_t v = id; p->values[v].of != v; v = p->values[v].of)
    from += p->values[v].offset;
  return t && moth_arena_may_replace(t, from, p->values[root_of(p, id)].bytes, result);
}

/* Whether result k of step s may lie where operand r does. */
static bool may_replace(const MothPlan *p, const MothPlanStep *s, uint32_t step, uint32_t k,
                        uint32_t r) {
  uint32_t root = root_of(p, s->values[s->nresults + r]);
  const MothPlanValue *v = &p->values[root];
  const MothTensor *result = p->values[s->values[k]].fake;
  if (v->place != MOTH_PLACE_ARENA || v->last != step || v->first == step || !v->fake ||
      !result->numel)
    return false;
  for (uint32_t i = 0; i < s->nreads; i++) {
    uint32_t id = s->values[s->nresults + i];
    if (root_of(p, id) != root)
      continue;
    if (!is_whole(p, id, result) || (s->kind == MOTH_STEP_BLOCKS &&
                                     (i >= s->nown || !moth_blocks_may_replace(s->blocks, k, i))))
      return false;
  }
  return true;
}

static void take_over(MothPlan *p, MothArenaBuffer *buffers, uint32_t step) {
  const MothPlanStep *s = &p->steps[step];
  for (uint32_t k = 0; s->in_place && s->head == UINT32_MAX && k < s->nresults; k++) {
    MothPlanValue *v = &p->values[s->values[k]];
    for (uint32_t r = 0; v->place == MOTH_PLACE_ARENA && v->buffer == UINT32_MAX && r < s->nreads;
         r++) {
      uint32_t root = root_of(p, s->values[s->nresults + r]);
      uint32_t b = p->values[root].buffer;
      if (b != UINT32_MAX && buffers[b].last == step && may_replace(p, s, step, k, r)) {
        v->buffer = b;
        buffers[b].last = v->last == step ? step + 1 : v->last; /* taken */
      }
    }
  }
}

/* The result of a step's head lies where a result of the blocks does, which they write when they have read it. */
static void join_head(MothPlan *p, const MothPlanStep *s) {
  if (s->head == UINT32_MAX)
    return;
  MothPlanValue *own = &p->values[s->values[s->nresults - 1]];
  uint32_t r = moth_blocks_operand(s->blocks, s->values[s->nresults - 1]);
  for (uint32_t k = 0; k + 1 < s->nresults && r != UINT32_MAX; k++) {
    const MothPlanValue *v = &p->values[s->values[k]];
    if (own->place == MOTH_PLACE_ARENA && v->place == MOTH_PLACE_ARENA && v->bytes == own->bytes &&
        moth_itemsize(v->fake) == moth_itemsize(own->fake) &&
        moth_blocks_may_replace(s->blocks, k, r)) {
      own->buffer = v->buffer;
      return;
    }
  }
}

/* Offsets of those of the buffers that are not apart, and how many bytes they take. `lists` has twice as many pointers. */
static MothStatus place_buffers(MothArenaBuffer *buffers, uint32_t all, MothArenaBuffer **lists,
                                int64_t *bytes) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < all; i++)
    if (!buffers[i].apart)
      lists[n++] = &buffers[i];
  *bytes = moth_arena_place(lists, lists + n, n);
  return *bytes < 0 ? moth_fail(MOTH_ERR_VALUE, "plan: values are too large to be counted")
                    : MOTH_OK;
}

/* What lies in buffers and in tensors at each step at most: the arena's bytes, and buffers that are alive and apart. */
static int64_t find_peak(const MothPlan *p, const MothArenaBuffer *buffers, uint32_t n,
                         int64_t arena) {
  int64_t live = arena, peak = arena;
  for (uint32_t i = 0; i < p->nsteps; i++) {
    const MothPlanStep *s = &p->steps[i];
    bool view = s->kind == MOTH_STEP_DISPATCHED && p->calls[s->call].op->memory == MOTH_MEMORY_VIEW;
    for (uint32_t k = 0; k < n; k++)
      live += buffers[k].apart && buffers[k].first == i ? buffers[k].bytes : 0;
    for (uint32_t k = 0; k < s->nresults; k++) {
      const MothPlanValue *v = &p->values[s->values[k]];
      live += has_tensor(v) && v->first == i && !view ? v->bytes : 0;
    }
    peak = live > peak ? live : peak;
    for (uint32_t k = 0; k < s->ndrops; k++)
      live -= p->values[s->drops[k]].bytes;
    for (uint32_t k = 0; k < n; k++)
      live -= buffers[k].apart && buffers[k].last == i ? buffers[k].bytes : 0;
  }
  return peak;
}

static MothStatus make_apart(MothPlan *p, const MothArenaBuffer *buffers, uint32_t n) {
  p->apart = calloc((size_t)n + 1, sizeof *p->apart);
  if (!p->apart)
    return moth_no_memory(((size_t)n + 1) * sizeof *p->apart);
  for (uint32_t k = 0; k < n; k++) { /* buffers come by their first steps */
    if (!buffers[k].apart)
      continue;
    MothPlanApart *a = &p->apart[p->napart];
    *a = (MothPlanApart){buffers[k].bytes, buffers[k].first, buffers[k].last, 0, NULL};
    a->values = malloc(sizeof *a->values * ((size_t)p->nvalues + 1));
    if (!a->values)
      return moth_no_memory(sizeof *a->values * ((size_t)p->nvalues + 1));
    for (uint32_t i = 0; i < p->nvalues; i++) {
      MothPlanValue *v = &p->values[i];
      if (v->place != MOTH_PLACE_ARENA || v->apart || v->buffer != k)
        continue;
      v->apart = true;
      v->offset = 0;
      v->buffer = p->napart;
      a->values[a->nvalues++] = i;
    }
    p->napart++;
  }
  return MOTH_OK;
}

/* The buffers of all values of the arena, n of them. */
static void find_buffers(MothPlan *p, MothArenaBuffer *buffers, uint32_t *n) {
  *n = 0;
  for (uint32_t i = 0; i < p->nsteps; i++) {
    const MothPlanStep *s = &p->steps[i];
    take_over(p, buffers, i);
    for (uint32_t k = 0; k < s->nresults + s->nreads; k++) {
      MothPlanValue *v = &p->values[s->values[k]];
      if (k + 1 == s->nresults)
        join_head(p, s);
      if (v->place != MOTH_PLACE_ARENA || v->buffer != UINT32_MAX)
        continue;
      v->buffer = *n;
      buffers[(*n)++] = (MothArenaBuffer){
          .bytes = moth_arena_bytes(v->bytes), .first = v->first, .last = v->last};
    }
  }
}

static MothStatus lay_buffers(MothPlan *p, MothArenaBuffer *buffers, MothArenaBuffer **lists) {
  uint32_t n = 0;
  int64_t arena;
  find_buffers(p, buffers, &n);
  MOTH_TRY(place_buffers(buffers, n, lists, &arena));
  int64_t peak = find_peak(p, buffers, n, arena);
  for (uint32_t k = 0; k < n; k++)
    buffers[k].apart = buffers[k].bytes >= LARGE;
  MOTH_TRY(place_buffers(buffers, n, lists, &p->arena_bytes));
  p->peak_bytes = find_peak(p, buffers, n, p->arena_bytes);
  if (p->peak_bytes >= peak) {
    for (uint32_t k = 0; k < n; k++)
      buffers[k].apart = false;
    MOTH_TRY(place_buffers(buffers, n, lists, &p->arena_bytes));
    p->peak_bytes = peak;
  }
  for (uint32_t i = 0; i < p->nvalues; i++)
    if (p->values[i].place == MOTH_PLACE_ARENA)
      p->values[i].offset = buffers[p->values[i].buffer].offset;
  return make_apart(p, buffers, n);
}

static MothStatus make_buffers(MothPlan *p) {
  size_t n = (size_t)p->nvalues + 1;
  MothArenaBuffer *buffers = malloc(sizeof *buffers * n), **lists = malloc(sizeof *lists * 2 * n);
  MothStatus status = buffers && lists ? lay_buffers(p, buffers, lists)
                                       : moth_no_memory((sizeof *buffers + 2 * sizeof *lists) * n);
  free(buffers);
  free(lists);
  return status;
}

MothStatus moth_plan_lay_out(MothPlan *p) {
  mark_owned(p);
  MOTH_TRY(mark_lives(p));
  MOTH_TRY(list_ends(p, has_tensor, false));
  MOTH_TRY(list_ends(p, is_input, true));
  MOTH_TRY(make_buffers(p));
  for (uint32_t i = 0; i < p->nvalues; i++)
    if (p->values[i].fake &&
        (p->values[i].place == MOTH_PLACE_ARENA || p->values[i].place == MOTH_PLACE_VIEW))
      p->values[i].header = p->nheaders++;
  return MOTH_OK;
}
