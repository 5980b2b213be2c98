/* Matrix products by cuBLASLt, which is opened at the first one.
 *
 * cuBLASLt is column-major: a row-major matrix is the transpose there, so C = A @ B is computed as
 * C' = B' @ A', with the right flags and leading dimensions and without copies.
 *
 * Descriptors and the algorithm that the library's heuristics choose depend on shapes, strides, alignment
 * and types alone. They are cached in a table of SETS x WAYS plans; a full set evicts its oldest plan. Plans
 * are plain bytes (descriptors made in place have nothing to destroy): a call takes a copy, so that only the
 * look-up needs the lock.
 *
 * Each call allocates its workspace from the caching allocator and frees it at once: blocks are reused in the
 * order of a stream. Many algorithms need none. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/gemm.h"
extern "C" {
#include "core/log.h"
#include "device/cuda_settings.h"
}
#ifdef __CUDACC__
#include <cublasLt.h>
#include <dlfcn.h>

#include "cuda/lib.h"
#else
#include "emu/cublaslt.h"
#endif

enum { SETS = 256, WAYS = 4 };
static const size_t WORKSPACE = 32u << 20;

#define LT_FUNCTIONS(X)                                                                            \
  X(cublasLtCreate)                                                                                \
  X(cublasLtGetVersion)                                                                            \
  X(cublasLtGetStatusName)                                                                         \
  X(cublasLtMatmulDescInit_internal)                                                               \
  X(cublasLtMatmulDescSetAttribute)                                                                \
  X(cublasLtMatrixLayoutInit_internal)                                                             \
  X(cublasLtMatrixLayoutSetAttribute)                                                              \
  X(cublasLtMatmulPreferenceInit_internal)                                                         \
  X(cublasLtMatmulPreferenceSetAttribute)                                                          \
  X(cublasLtMatmulAlgoGetHeuristic)                                                                \
  X(cublasLtMatmul)

static struct {
#define LT_MEMBER(f) decltype(&::f) f;
  LT_FUNCTIONS(LT_MEMBER)
} lt;
static bool missing;
static cublasLtHandle_t handles[MOTH_CUDA_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Notes the library in use, or why it is not used. */
static void note(const char *what) {
  snprintf(moth_cuda_settings.library, sizeof moth_cuda_settings.library, "%s%.100s",
           missing ? "own kernel: " : "", what);
  if (moth_log_on("cuda"))
    moth_log_write("cuda", "matrix products: %s", moth_cuda_settings.library);
}

static void open_library(void) {
#ifdef __CUDACC__
  void *library;
  if (moth_cuda_lib_open(MOTH_CUDA_CUBLASLT, &library) != MOTH_OK) {
    missing = true;
    note(moth_last_error());
    return;
  }
#define LT_FIND(f)                                                                                 \
  lt.f = reinterpret_cast<decltype(lt.f)>(dlsym(library, #f));                                     \
  missing = missing || !lt.f;
  LT_FUNCTIONS(LT_FIND)
  if (missing) {
    note("cuBLASLt lacks functions that are needed");
    return;
  }
#else
#define LT_FIND(f) lt.f = f;
  LT_FUNCTIONS(LT_FIND)
#endif
  char version[64];
  snprintf(version, sizeof version, "cuBLASLt %d", (int)lt.cublasLtGetVersion());
  note(version);
}

static MothStatus lt_check(cublasStatus_t s, const char *what, const MothGemm *g) {
  if (s == CUBLAS_STATUS_SUCCESS)
    return MOTH_OK;
  char batch[32] = "";
  if (g->batch != 1)
    snprintf(batch, sizeof batch, "%lld x ", (long long)g->batch);
  return moth_fail(s == CUBLAS_STATUS_ALLOC_FAILED ? MOTH_ERR_MEMORY : MOTH_ERR_STATE,
                   "%s: %s (%s%lldx%lld by %lldx%lld, %s)", what, lt.cublasLtGetStatusName(s),
                   batch, (long long)g->m, (long long)g->k, (long long)g->k, (long long)g->n,
                   moth_dtype_name((MothDType)g->dtype));
}
#define LT_TRY(f, ...) MOTH_TRY(lt_check(lt.f(__VA_ARGS__), #f, g))

/* --- plans -------------------------------------------------------------------------------------- */

/* a, b, c are the library's: its A is our B. Bytes are compared, so there is no padding. */
struct Key {
  int64_t m, n, k, batch, lda, ldb, ldc, stride_a, stride_b, stride_c;
  uint8_t device, dtype, tf32, ta, tb, bias;
  uint8_t align_a, align_b, align_c; /* log2 of bytes, at most 8 */
  uint8_t none[7];
};
static_assert(sizeof(Key) == 96, "the bytes of a key are compared");

struct Plan {
  Key key;
  bool used, unsupported;
  cublasLtMatmulDescOpaque_t op;
  cublasLtMatrixLayoutOpaque_t a, b, c;
  cublasLtMatmulAlgo_t algo;
  size_t workspace;
};

static Plan plans[SETS][WAYS];
static uint8_t oldest[SETS];

static uint8_t alignment(const void *p) {
  uint8_t n = 0;
  while (n < 8 && !((uintptr_t)p >> n & 1))
    n++;
  return n;
}

static void make_key(int device, const MothGemm *g, Key *key) {
  memset(key, 0, sizeof *key);
  key->m = g->m, key->n = g->n, key->k = g->k, key->batch = g->batch;
  key->device = (uint8_t)device;
  key->dtype = (uint8_t)g->dtype;
  key->tf32 = g->dtype == MOTH_FLOAT32 && moth_cuda_settings.allow_tf32;
  /* A row-major operand (column stride 1) is column-major there, with rows and columns swapped. */
  key->ta = g->b_col != 1;
  key->tb = g->a_col != 1;
  key->lda = key->ta ? g->b_col : g->b_row;
  key->ldb = key->tb ? g->a_col : g->a_row;
  key->ldc = g->c_row;
  if (g->batch > 1)
    key->stride_a = g->b_batch, key->stride_b = g->a_batch, key->stride_c = g->c_batch;
  key->bias = g->bias != nullptr;
  key->align_a = alignment(g->b);
  key->align_b = alignment(g->a);
  key->align_c = alignment(g->c);
}

static unsigned hash(const Key *key) {
  const unsigned char *bytes = reinterpret_cast<const unsigned char *>(key);
  uint64_t h = 0;
  for (size_t i = 0; i < sizeof *key; i += 8) {
    uint64_t word;
    memcpy(&word, bytes + i, 8);
    h = (h ^ word) * 0x9e3779b97f4a7c15ull;
    h ^= h >> 29;
  }
  return (unsigned)(h % SETS);
}

static cudaDataType_t lt_type(MothDType dtype) {
  switch (dtype) {
  case MOTH_FLOAT64:
    return CUDA_R_64F;
  case MOTH_COMPLEX64:
    return CUDA_C_32F;
  case MOTH_COMPLEX128:
    return CUDA_C_64F;
  case MOTH_FLOAT16:
    return CUDA_R_16F;
  case MOTH_BFLOAT16:
    return CUDA_R_16BF;
  default:
    return CUDA_R_32F;
  }
}

static bool is_wide(const MothGemm *g) {
  return g->dtype == MOTH_FLOAT64 || g->dtype == MOTH_COMPLEX128;
}

/* Replaces the *Init functions of the header, which call the library by name, not through our table. */
static MothStatus layout(const MothGemm *g, int64_t rows, int64_t cols, int64_t ld, int64_t stride,
                         cublasLtMatrixLayoutOpaque_t *out) {
  LT_TRY(cublasLtMatrixLayoutInit_internal, out, sizeof *out, lt_type((MothDType)g->dtype),
         (uint64_t)rows, (uint64_t)cols, ld);
  if (g->batch == 1)
    return MOTH_OK;
  int32_t count = (int32_t)g->batch;
  LT_TRY(cublasLtMatrixLayoutSetAttribute, out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
         sizeof count);
  LT_TRY(cublasLtMatrixLayoutSetAttribute, out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
         &stride, sizeof stride);
  return MOTH_OK;
}

static MothStatus describe(const MothGemm *g, Plan *p) {
  const Key *key = &p->key;
  bool pairs = moth_dtype_is_complex((MothDType)g->dtype), wide = is_wide(g);
  LT_TRY(cublasLtMatmulDescInit_internal, &p->op, sizeof p->op,
         wide        ? CUBLAS_COMPUTE_64F
         : key->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                     : CUBLAS_COMPUTE_32F,
         pairs  ? lt_type((MothDType)g->dtype)
         : wide ? CUDA_R_64F
                : CUDA_R_32F);
  int32_t ta = key->ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb = key->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
  LT_TRY(cublasLtMatmulDescSetAttribute, &p->op, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
  LT_TRY(cublasLtMatmulDescSetAttribute, &p->op, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
  if (g->bias) {
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    LT_TRY(cublasLtMatmulDescSetAttribute, &p->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
           sizeof epilogue);
    LT_TRY(cublasLtMatmulDescSetAttribute, &p->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias,
           sizeof g->bias);
  }
  MOTH_TRY(layout(g, key->ta ? g->k : g->n, key->ta ? g->n : g->k, key->lda, key->stride_a, &p->a));
  MOTH_TRY(layout(g, key->tb ? g->m : g->k, key->tb ? g->k : g->m, key->ldb, key->stride_b, &p->b));
  return layout(g, g->n, g->m, key->ldc, key->stride_c, &p->c);
}

/* Only algorithms that join partial sums in order, in float32: results are the same in every run. */
static MothStatus choose(cublasLtHandle_t handle, const MothGemm *g, Plan *p) {
  cublasLtMatmulPreferenceOpaque_t pref;
  LT_TRY(cublasLtMatmulPreferenceInit_internal, &pref, sizeof pref);
  uint32_t a = 1u << p->key.align_a, b = 1u << p->key.align_b, c = 1u << p->key.align_c;
  uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  const struct {
    cublasLtMatmulPreferenceAttributes_t attribute;
    const void *value;
    size_t size;
  } wishes[] = {
      {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE, sizeof WORKSPACE},
      {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c},
  };
  for (const auto &wish : wishes)
    LT_TRY(cublasLtMatmulPreferenceSetAttribute, &pref, wish.attribute, wish.value, wish.size);
  cublasLtMatmulHeuristicResult_t best;
  memset(&best, 0, sizeof best);
  int found = 0;
  cublasStatus_t s = lt.cublasLtMatmulAlgoGetHeuristic(handle, &p->op, &p->a, &p->b, &p->c, &p->c,
                                                       &pref, 1, &best, &found);
  p->unsupported = s == CUBLAS_STATUS_NOT_SUPPORTED || (s == CUBLAS_STATUS_SUCCESS && !found);
  if (p->unsupported)
    return MOTH_OK;
  MOTH_TRY(lt_check(s, "cublasLtMatmulAlgoGetHeuristic", g));
  MOTH_TRY(lt_check(best.state, "cublasLtMatmulAlgoGetHeuristic", g));
  p->algo = best.algo;
  p->workspace = best.workspaceSize;
  return MOTH_OK;
}

struct Locked {
  Locked() { pthread_mutex_lock(&lock); }
  ~Locked() { pthread_mutex_unlock(&lock); }
};

static MothStatus find_plan(int device, const MothGemm *g, Plan *out) {
  Locked locked;
  if (!handles[device])
    LT_TRY(cublasLtCreate, &handles[device]);
  memset(out, 0, sizeof *out);
  make_key(device, g, &out->key);
  unsigned set = hash(&out->key);
  for (int i = 0; i < WAYS; i++)
    if (plans[set][i].used && !memcmp(&plans[set][i].key, &out->key, sizeof out->key)) {
      *out = plans[set][i];
      return MOTH_OK;
    }
  MOTH_TRY(describe(g, out));
  MOTH_TRY(choose(handles[device], g, out));
  out->used = true;
  plans[set][oldest[set]++ % WAYS] = *out;
  return MOTH_OK;
}

/* --- the product -------------------------------------------------------------------------------- */

MothStatus moth_cublaslt_gemm(const MothCudaRun *run, const MothGemm *g, bool *done) {
  *done = false;
  pthread_once(&once, open_library);
  if (missing || g->batch > INT32_MAX)
    return MOTH_OK;
  Plan p;
  MothScratch workspace;
  MOTH_TRY(find_plan(run->device, g, &p));
  if (p.unsupported)
    return MOTH_OK;
  if (p.workspace)
    MOTH_TRY(workspace.take(run->device, p.workspace));
  if (g->bias)
    LT_TRY(cublasLtMatmulDescSetAttribute, &p.op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias,
           sizeof g->bias);
  /* Complex products read both parts. */
  const double alpha64[2] = {g->alpha, 0}, beta64[2] = {g->beta, 0};
  const float alpha32[2] = {(float)g->alpha, 0}, beta32[2] = {(float)g->beta, 0};
  bool wide = is_wide(g);
  LT_TRY(cublasLtMatmul, handles[run->device], &p.op,
         wide ? (const void *)alpha64 : (const void *)alpha32, g->b, &p.a, g->a, &p.b,
         wide ? (const void *)beta64 : (const void *)beta32, g->c, &p.c, g->c, &p.c, &p.algo,
         workspace.p, p.workspace, run->stream);
  *done = true;
  return MOTH_OK;
}
