/* Quantized blocks of GGUF as floats: what kernels/blocks.h unpacks. */
#include "core/error.h"
#include "core/parallel.h"
#include "io/gguf.h"

#define MOTH_FN static inline __attribute__((unused))
#include "kernels/math_bits.h"

#include "kernels/blocks.h"

enum { GRAIN = 256 };

#define DEQUANTIZE(NAME, name, number, elements, bytes, zero, leasts)                              \
  static void name(const uint8_t *b, float *y) {                                                   \
    uint8_t q[elements];                                                                           \
    float scale[(elements) / MOTH_BLOCK_GROUP], least[(elements) / MOTH_BLOCK_GROUP];              \
    m_unpack_##name(b, q, scale, least);                                                           \
    for (int i = 0; i < (elements); i++) {                                                         \
      y[i] = scale[i / MOTH_BLOCK_GROUP] * (float)(q[i] - (zero));                                 \
      if (leasts)                                                                                  \
        y[i] += least[i / MOTH_BLOCK_GROUP];                                                       \
    }                                                                                              \
  }
MOTH_BLOCK_TYPES(DEQUANTIZE)

typedef struct Blocks {
  int64_t elements, bytes;
  void (*dequantize)(const uint8_t *block, float *out);
} Blocks;

#define RECORD(NAME, name, number, elements, bytes, zero, leasts)                                  \
  [number] = {elements, bytes, name},
static const Blocks blocks[] = {MOTH_BLOCK_TYPES(RECORD)};

int64_t moth_gguf_block(uint32_t type, int64_t *elements) {
  bool known = type < sizeof blocks / sizeof *blocks && blocks[type].bytes;
  *elements = known ? blocks[type].elements : 0;
  return known ? blocks[type].bytes : 0;
}

typedef struct Work {
  const Blocks *kind;
  const uint8_t *bytes;
  float *out;
} Work;

static void dequantize(void *ctx, int64_t begin, int64_t end) {
  const Work *w = ctx;
  for (int64_t i = begin; i < end; i++)
    w->kind->dequantize(w->bytes + i * w->kind->bytes, w->out + i * w->kind->elements);
}

MothStatus moth_gguf_dequantize(MothGgufType type, const uint8_t *bytes, int64_t count,
                                float *out) {
  int64_t elements;
  if (!moth_gguf_block(type, &elements) || count % elements)
    return moth_fail(MOTH_ERR_VALUE, "GGUF: %lld elements of type %s are no whole blocks",
                     (long long)count, moth_gguf_type_name(type));
  Work w = {&blocks[type], bytes, out};
  moth_parallel_for(count / elements, GRAIN, dequantize, &w);
  return MOTH_OK;
}
