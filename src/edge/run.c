/* The runtime for exported files: the functions of moth_edge.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/parallel.h"
#include "edge/model.h"
#include "edge/ops.h"
#include "kernels/cpu/util.h"

typedef struct Block {
  struct Block *next;
  max_align_t bytes[];
} Block;

void *moth_edge_take(MothModel *m, size_t count, size_t size) {
  size_t n;
  Block *b = __builtin_mul_overflow(count ? count : 1, size, &n) ? NULL : calloc(1, sizeof *b + n);
  if (!b) {
    moth_fail(MOTH_ERR_MEMORY, "[edge] no memory for the model");
    return NULL;
  }
  b->next = m->blocks;
  m->blocks = b;
  return b->bytes;
}

void moth_edge_free(MothModel *m) {
  if (!m)
    return;
  for (uint32_t i = 0; m->calls && i < m->ncalls; i++)
    moth_kept_free(&m->calls[i].kept);
  for (Block *b = m->blocks, *next; b; b = next) {
    next = b->next;
    free(b);
  }
  moth_safetensors_free(m->file);
  free(m->own_bytes);
  free(m);
}

static const char *metadata(const MothSafetensors *file, const char *key) {
  for (int64_t i = 0; i < file->metadata_count; i++)
    if (!strcmp(file->metadata[i].key, key))
      return file->metadata[i].value;
  return NULL;
}

static MothStatus load(MothModel *m) {
  MOTH_TRY(moth_edge_check_cpu());
  if ((uintptr_t)m->bytes % 8)
    return moth_fail(MOTH_ERR_VALUE, "[edge] the bytes of a model must begin at a multiple of 8");
  MothStatus s = moth_safetensors_parse(m->bytes, m->nbytes, &m->file);
  if (s != MOTH_OK) {
    moth_error_prefix("[edge] this is no file of moth.edge.export: ");
    return s;
  }
  const char *format = metadata(m->file, "format"), *program = metadata(m->file, "graph");
  if (!format || !program || strncmp(format, "moth.edge ", 10) != 0)
    return moth_fail(MOTH_ERR_VALUE, "[edge] this is no file of moth.edge.export%s",
                     format && !strncmp(format, "moth.export ", 12)
                         ? ", but of moth.export.save: load it with moth and export it for edge"
                         : "");
  if (strlen(format) != 11 || format[10] < '1' || format[10] > '3')
    return moth_fail(MOTH_ERR_VALUE,
                     "[edge] the file's format is '%.40s', this library reads "
                     "'moth.edge 1' to 'moth.edge 3'",
                     format);
  MOTH_TRY(moth_edge_read(m, program));
  return moth_edge_plan(m, NULL);
}

static int load_bytes(const void *bytes, size_t n, uint8_t *own, const MothFused *fused,
                      MothModel **out) {
  MothModel *m = calloc(1, sizeof *m);
  if (!m) {
    free(own);
    return (int)moth_fail(MOTH_ERR_MEMORY, "[edge] no memory for the model");
  }
  m->bytes = bytes;
  m->nbytes = n;
  m->own_bytes = own;
  m->fused = fused;
  MothStatus s = load(m);
  if (s != MOTH_OK)
    moth_edge_free(m);
  else
    *out = m;
  return (int)s;
}

int moth_edge_load_memory(const void *bytes, size_t n, MothModel **m) {
  return bytes && m ? load_bytes(bytes, n, NULL, NULL, m)
                    : (int)moth_fail(MOTH_ERR_TYPE, "[edge] load_memory: an argument is NULL");
}

int moth_edge_load_fused(const void *bytes, size_t n, const MothFused *fused, MothModel **m) {
  if (!bytes || !m || !fused || fused->version != MOTH_FUSED_VERSION)
    return (int)moth_fail(MOTH_ERR_VALUE,
                          "[edge] the model was compiled for another version of moth");
  return load_bytes(bytes, n, NULL, fused, m);
}

int moth_edge_load(const char *path, MothModel **m) {
  if (!path || !m)
    return (int)moth_fail(MOTH_ERR_TYPE, "[edge] load: an argument is NULL");
  FILE *f = fopen(path, "rb");
  if (!f)
    return (int)moth_fail(MOTH_ERR_IO, "[edge] cannot open %.400s", path);
  long n = fseek(f, 0, SEEK_END) ? -1 : ftell(f);
  uint8_t *bytes = n >= 0 ? malloc((size_t)n + 1) : NULL;
  bool ok = bytes && !fseek(f, 0, SEEK_SET) && fread(bytes, 1, (size_t)n, f) == (size_t)n;
  fclose(f);
  if (!ok) {
    free(bytes);
    return (int)moth_fail(MOTH_ERR_IO, "[edge] cannot read %.400s", path);
  }
  return load_bytes(bytes, (size_t)n, bytes, NULL, m);
}

int moth_edge_inputs(const MothModel *m) {
  return m ? (int)m->ninputs : 0;
}
int moth_edge_outputs(const MothModel *m) {
  return m ? (int)m->noutputs : 0;
}
int moth_edge_dims(const MothModel *m) {
  return m ? (int)m->ndims : 0;
}
const MothIo *moth_edge_input(const MothModel *m, int i) {
  return m && i >= 0 && (uint32_t)i < m->ninputs ? &m->inputs[i].io : NULL;
}
const MothIo *moth_edge_output(const MothModel *m, int i) {
  return m && i >= 0 && (uint32_t)i < m->noutputs ? &m->outputs[i].io : NULL;
}
const MothDim *moth_edge_dim(const MothModel *m, int i) {
  return m && i >= 0 && (uint32_t)i < m->ndims ? &m->dims[i] : NULL;
}
const char *moth_edge_error(void) {
  return moth_last_error();
}

/* ---- running ----------------------------------------------------------------------------------------- */

void moth_edge_place(MothModel *m, const void *const *in, void *const *out, char *arena) {
  for (uint32_t i = 0; i < m->nvalues; i++) {
    MothEdgeValue *v = &m->values[i];
    if (v->kind == MOTH_EDGE_ALIAS) {
      const MothEdgeValue *root = &m->values[v->root];
      char *base = root->storage.data;
      v->storage.data = base;
      v->t.data = base ? base + v->t.offset * moth_itemsize(&v->t) : NULL;
      continue;
    }
    if (v->kind == MOTH_EDGE_INPUT)
      v->storage.data = (void *)(uintptr_t)in[i];
    else if (v->kind == MOTH_EDGE_MADE)
      v->storage.data = v->output >= 0 ? out[v->output] : arena + m->values[v->buffer].life.offset;
    v->t.data = v->storage.data;
  }
}

static MothStatus run_call(const MothModel *m, MothEdgeCall *c) {
  if (c->fused)
    return moth_edge_run_fused(m, c);
  if (c->op->memory == MOTH_MEMORY_VIEW)
    return MOTH_OK;
  return moth_kernel_of(c->op, MOTH_CPU)(&c->call);
}

static bool is_true(const MothModel *m, const MothEdgeCall *c) {
  const MothTensor *t = &m->values[c->pred].t;
  MothValue v = moth_dtype_load((MothDType)t->dtype, t->data);
  return v.tag == MOTH_V_FLOAT ? v.u.d != 0 : v.tag == MOTH_V_BOOL ? v.u.b : v.u.i != 0;
}

static MothStatus run_range(MothModel *m, uint32_t begin, uint32_t end, bool all);

/* The blocks behind call i; `all`: each of them once. */
static MothStatus run_control(MothModel *m, uint32_t i, bool all) {
  const MothEdgeCall *c = &m->calls[i];
  uint32_t first = i + 1, second = first + c->blocks[0], end = second + c->blocks[1];
  if (all)
    return run_range(m, first, end, true);
  if (c->control == MOTH_CONTROL_IF)
    return is_true(m, c) ? run_range(m, first, second, false) : run_range(m, second, end, false);
  MOTH_TRY(run_range(m, first, second, false));
  while (is_true(m, c)) {
    if (moth_stopped())
      return moth_interrupted();
    MOTH_TRY(run_range(m, second, end, false));
    MOTH_TRY(run_range(m, first, second, false));
  }
  return MOTH_OK;
}

MothStatus moth_edge_steps(MothModel *m, bool all) {
  return run_range(m, 0, m->ncalls, all);
}

static MothStatus run_range(MothModel *m, uint32_t begin, uint32_t end, bool all) {
  for (uint32_t i = begin; i < end; i++) {
    if (m->calls[i].control) {
      MOTH_TRY(run_control(m, i, all));
      i += m->calls[i].blocks[0] + m->calls[i].blocks[1];
      continue;
    }
    moth_keeping_call(&m->keeper, &m->calls[i].kept);
    MothStatus s = run_call(m, &m->calls[i]);
    moth_scratch_reset();
    if (s == MOTH_OK)
      moth_keeping_made(&m->keeper);
    if (s == MOTH_ERR_MEMORY && !all) /* the arena has what a run on zeros took */
      s = moth_fail(s, "it needs more memory for these elements than the model was measured with");
    if (s != MOTH_OK && !all) {
      moth_error_prefix("[edge] call %u of %s: ", i + 1, moth_edge_name(&m->calls[i]));
      return s;
    }
  }
  return MOTH_OK;
}

/* Outputs that no call has written in place. */
static void copy_outputs(MothModel *m, void *const *out) {
  for (uint32_t i = 0; i < m->noutputs; i++) {
    MothEdgeValue *v = &m->values[m->outputs[i].value];
    if (v->kind == MOTH_EDGE_MADE && v->output == (int32_t)i)
      continue;
    MothTensor to = v->t;
    MothStorage storage = v->storage;
    storage.data = out[i];
    to.storage = &storage;
    to.data = out[i];
    to.offset = 0;
    to.contiguous = true;
    moth_contiguous_strides(to.ndim, to.shape, to.stride);
    if (to.numel)
      moth_cpu_copy(&to, &v->t);
  }
}

static bool is_planned(const MothModel *m, const int64_t *dims) {
  for (uint32_t i = 0; i < m->ndims; i++)
    if (m->now[i] != (dims ? dims[i] : m->dims[i].example))
      return false;
  return m->planned;
}

/* The elements of the tensors that calls write to, <-> bytes, or from the file (NULL). Returns how many there are. */
static size_t copy_written(MothModel *m, char *bytes, bool back) {
  size_t n = 0;
  for (uint32_t i = m->ninputs; i < m->ninputs + m->nstate; i++) {
    const MothEdgeValue *v = &m->values[i];
    if (!v->initial)
      continue;
    if (back)
      memcpy(v->storage.data, bytes ? bytes + n : (const char *)v->initial, v->storage.nbytes);
    else if (bytes)
      memcpy(bytes + n, v->storage.data, v->storage.nbytes);
    n += v->storage.nbytes;
  }
  return n;
}

void moth_edge_reset(MothModel *m) {
  if (m)
    copy_written(m, NULL, true);
}

#ifndef MOTH_EDGE_PACK
#define MOTH_EDGE_PACK 1
#endif

static bool is_in_file(const void *owner, const void *p) {
  const MothModel *m = owner;
  uintptr_t from = (uintptr_t)m->bytes;
  return MOTH_EDGE_PACK && (uintptr_t)p >= from && (uintptr_t)p - from < m->nbytes;
}

/* What kernels make of the model's constants, packed weights, is allocated and filled when it is measured, and kept. */
static void keep_begin(MothModel *m, bool fills) {
  moth_keeping_begin(&m->keeper, is_in_file, m, fills);
}

/* What kernels allocate: the model runs once, on zeros (integers: ones, which are valid positions). */
static MothStatus measure(MothModel *m) {
  size_t count = (size_t)m->ninputs + m->noutputs;
  void **io = calloc(count + 1, sizeof *io);
  char *arena = malloc(m->arena + MOTH_EDGE_ALIGN);
  char *written = malloc(copy_written(m, NULL, false) + 1);
  bool ok = io && arena && written;
  for (size_t i = 0; i < count && ok; i++) {
    const MothEdgeIo *e = i < m->ninputs ? &m->inputs[i] : &m->outputs[i - m->ninputs];
    io[i] = calloc(e->io.nbytes + 1, 1);
    ok = io[i] != NULL;
    const MothTensor *t = &m->values[e->value].t;
    bool whole = moth_dtype_class((MothDType)t->dtype) == MOTH_CLASS_INT;
    for (int64_t k = 0; ok && whole && k < t->numel; k++)
      memset((char *)io[i] + k * e->io.itemsize, 1, 1);
  }
  if (ok) {
    copy_written(m, written, false);
    memset(arena, 0, m->arena + MOTH_EDGE_ALIGN);
    moth_edge_place(m, (const void *const *)io, io + m->ninputs, arena);
    moth_scratch_begin(NULL, 0);
    keep_begin(m, true);
    moth_edge_steps(m, true);
    moth_keeping_end(&m->keeper);
    copy_outputs(m, io + m->ninputs);
    m->scratch = moth_scratch_end();
    m->measured = true;
    copy_written(m, written, true);
  }
  free(written);
  for (size_t i = 0; io && i < count; i++)
    free(io[i]);
  free(io);
  free(arena);
  return ok ? MOTH_OK : moth_fail(MOTH_ERR_MEMORY, "[edge] no memory to run the model in");
}

size_t moth_edge_arena(MothModel *m, const int64_t *dims) {
  if (!m) {
    moth_fail(MOTH_ERR_TYPE, "[edge] arena: the model is NULL");
    return 0;
  }
  if (!is_planned(m, dims) && moth_edge_plan(m, dims) != MOTH_OK)
    return 0;
  if (!m->measured && measure(m) != MOTH_OK)
    return 0;
  return m->arena + m->scratch + MOTH_EDGE_ALIGN;
}

static MothStatus run(MothModel *m, const void *const *in, const int64_t *dims, void *const *out,
                      char *arena) {
  bool given = m && arena && (in || !m->ninputs) && (out || !m->noutputs);
  for (uint32_t i = 0; given && i < m->ninputs; i++)
    given = in[i] != NULL;
  for (uint32_t i = 0; given && i < m->noutputs; i++)
    given = out[i] != NULL;
  if (!given)
    return moth_fail(MOTH_ERR_TYPE, "[edge] run: an argument is NULL");
  if (!is_planned(m, dims) || !m->measured)
    return moth_fail(MOTH_ERR_STATE,
                     "[edge] run: call moth_edge_arena for these sizes before the first run");
  arena += -(uintptr_t)arena % MOTH_EDGE_ALIGN;
  moth_edge_place(m, in, out, arena);
  moth_scratch_begin(arena + m->arena, m->scratch);
  keep_begin(m, false);
  MothStatus s = moth_edge_steps(m, false);
  moth_keeping_end(&m->keeper);
  if (s == MOTH_OK)
    copy_outputs(m, out);
  moth_scratch_end();
  return s;
}

int moth_edge_run(MothModel *m, const void *const *in, const int64_t *dims, void *const *out,
                  void *arena) {
  return (int)run(m, in, dims, out, arena);
}
