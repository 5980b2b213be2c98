/* Opens the BLAS library: OpenBLAS's openmp build by its full path, or what MOTH_BLAS names.
 *
 * OpenBLAS chooses its kernels by the processor's model, and one that is newer than the library may get those for SSE3
 * (0.3.21 on Emerald Rapids: products of float64 took four times, LAPACK twice the time). So its choice is compared with
 * what the processor has, and the library is opened anew with a better one, unless OPENBLAS_CORETYPE is set; some
 * products are checked first.
 *
 * Its first product takes some 420 MB of addresses; where fewer are allowed, it tries for ever. */
#include "kernels/cpu/blas_open.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/environment.h"
#include "core/log.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/loop.h"
#include "moth.h"

enum { NEEDS_MB = 512 };

static MothBlas blas = {.path = "none", .core = "", .note = ""};
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Opens one library; false: it is not there, or does not suit. */
static bool open_one(const char *path) {
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!lib)
    return false;
  MothBlas b = {.library = lib, .path = path, .core = "", .note = ""};
  int (*parallel)(void);
  const char *(*core)(void);
  *(void **)&parallel = dlsym(lib, "openblas_get_parallel");
  *(void **)&core = dlsym(lib, "openblas_get_corename");
  *(void **)&b.sgemm = dlsym(lib, "cblas_sgemm");
  *(void **)&b.dgemm = dlsym(lib, "cblas_dgemm");
  *(void **)&b.cgemm = dlsym(lib, "cblas_cgemm");
  *(void **)&b.zgemm = dlsym(lib, "cblas_zgemm");
  /* 0: serial, 2: OpenMP. A pthread build beside OpenMP doubles the time of a step. */
  if (!b.sgemm || !b.dgemm || !parallel || parallel() == 1) {
    dlclose(lib);
    return false;
  }
  if (core)
    b.core = core();
  blas = b;
  return true;
}

/* ---- the core ---------------------------------------------------------------------------------- */

#if defined(__x86_64__)
/* The best kernels of OpenBLAS that this processor runs, or NULL: none better than those for SSE. */
static const char *best_core(void) {
  return moth_cpu_has(MOTH_ISA_AVX512) ? "SkylakeX"
         : moth_cpu_has(MOTH_ISA_AVX2) ? "Haswell"
                                       : NULL;
}

/* Whether kernels of this name use AVX2 at least. */
static bool is_modern(const char *core) {
  static const char *const old[] = {
      "Prescott", "Katmai",     "Coppermine",  "Northwood", "Banias", "Core2",   "Core",
      "Penryn",   "Dunnington", "Nehalem",     "Atom",      "Athlon", "Opteron", "Barcelona",
      "Bobcat",   "Nano",       "Sandybridge", "Generic",   "Unknown"};
  for (size_t i = 0; i < sizeof old / sizeof *old; i++)
    if (strncasecmp(core, old[i], strlen(old[i])) == 0)
      return false;
  return true;
}

/* C x = A (B x) of integers that float32 holds exactly, for products large enough to be cut in blocks. */
enum { M = 150, K = 300, N = 170 };
typedef struct Trial {
  double a[M * K], b[K * N], c[M * N];
  float fa[M * K], fb[K * N], fc[M * N];
} Trial;

static bool product_is_right(Trial *t, bool is_double, bool a_transposed, bool b_transposed) {
  double *a = t->a, *b = t->b, *c = t->c;
  float *fa = t->fa, *fb = t->fb, *fc = t->fc;
  for (int i = 0; i < M * K; i++)
    fa[i] = (float)(a[i] = (i * 7 + i / K) % 11 - 5);
  for (int i = 0; i < K * N; i++)
    fb[i] = (float)(b[i] = (i * 5 + i / N) % 13 - 6);
  int ta = a_transposed ? MOTH_TRANS : MOTH_NO_TRANS,
      tb = b_transposed ? MOTH_TRANS : MOTH_NO_TRANS;
  int lda = a_transposed ? M : K, ldb = b_transposed ? K : N;
  if (is_double)
    blas.dgemm(MOTH_ROW_MAJOR, ta, tb, M, N, K, 1, a, lda, b, ldb, 0, c, N);
  else
    blas.sgemm(MOTH_ROW_MAJOR, ta, tb, M, N, K, 1, fa, lda, fb, ldb, 0, fc, N);
  double bx[K];
  for (int k = 0; k < K; k++) {
    bx[k] = 0;
    for (int j = 0; j < N; j++)
      bx[k] += b[b_transposed ? j * K + k : k * N + j] * (j % 7 + 1);
  }
  for (int i = 0; i < M; i++) {
    double want = 0, got = 0;
    for (int k = 0; k < K; k++)
      want += a[a_transposed ? k * M + i : i * K + k] * bx[k];
    for (int j = 0; j < N; j++)
      got += (is_double ? c[i * N + j] : (double)fc[i * N + j]) * (j % 7 + 1);
    if (want != got)
      return false;
  }
  return true;
}

static bool products_are_right(void) {
  Trial *t = malloc(sizeof *t);
  bool right = t != NULL;
  for (int i = 0; i < 8 && right; i++)
    right = product_is_right(t, i & 4, i & 1, i & 2);
  free(t);
  return right;
}

/* Opens the library anew, with the kernels for `core`, or those of its own choice (NULL). */
static bool open_again(const char *path, const char *core) {
  if (blas.library)
    dlclose(blas.library);
  blas = (MothBlas){.path = "none", .core = "", .note = ""};
  if (core)
    setenv("OPENBLAS_CORETYPE", core, 1);
  bool ok = open_one(path);
  if (core)
    unsetenv("OPENBLAS_CORETYPE"); /* it is not for the processes that this one starts */
  return ok;
}

static void choose_core(void) {
  static char note[120];
  const char *best = best_core(), *path = blas.path;
  if (!best || !*blas.core || is_modern(blas.core) || getenv("OPENBLAS_CORETYPE"))
    return;
  char own[32];
  snprintf(own, sizeof own, "%s", blas.core);
  bool open = open_again(path, best);
  if (open && strcasecmp(blas.core, best) != 0) {
    snprintf(note, sizeof note, "another part of the process holds the library");
  } else if (open && products_are_right()) {
    snprintf(note, sizeof note, "the library itself chose %s", own);
  } else {
    open = open_again(path, NULL);
    snprintf(note, sizeof note, "its kernels for %s are wrong here", best);
  }
  if (open)
    blas.note = note;
}
#else
static void choose_core(void) {}
#endif

static void open_blas(void) {
  static const char *const paths[] = {
      NULL, /* $MOTH_BLAS */
      "/usr/lib/x86_64-linux-gnu/openblas-openmp/libopenblas.so.0",
      "/usr/lib/aarch64-linux-gnu/openblas-openmp/libopenblas.so.0",
      "libopenblas.so.0",
  };
  static char limited[160];
  const char *asked = moth_env_text("MOTH_BLAS");
  bool none = asked && strcmp(asked, "none") == 0;
  int64_t left = moth_addresses_left() >> 20; /* MB */
  size_t needs = (size_t)NEEDS_MB << 20;
  void *trial = mmap(NULL, needs, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (trial != MAP_FAILED)
    munmap(trial, needs);
  if (none) {
    blas.note = "MOTH_BLAS=none";
  } else if (left < NEEDS_MB) {
    snprintf(
        limited, sizeof limited,
        "the limit of addresses (ulimit -v, -d) leaves %lld MB, and its first product takes %d",
        (long long)left, NEEDS_MB);
    blas.note = limited;
  } else if (trial == MAP_FAILED) { /* vm.overcommit_memory, a limit of another kind */
    snprintf(limited, sizeof limited,
             "its first product takes %d MB of addresses, which the system refuses", NEEDS_MB);
    blas.note = limited;
  } else {
    for (size_t i = 0; i < sizeof paths / sizeof *paths && !blas.library; i++) {
      const char *path = i ? paths[i] : asked;
      if (path && open_one(path))
        choose_core();
    }
  }
  if (moth_log_on("blas"))
    moth_log_write("blas", "%s %s %s", blas.path, blas.core, blas.note);
}

const MothBlas *moth_blas(void) {
  pthread_once(&once, open_blas);
  return &blas;
}

const char *moth_blas_name(void) {
  return moth_blas()->path;
}

const char *moth_blas_core(void) {
  return moth_blas()->core;
}

const char *moth_blas_note(void) {
  return moth_blas()->note;
}

void *moth_blas_symbol(const char *symbol) {
  return moth_blas()->library ? dlsym(moth_blas()->library, symbol) : NULL;
}
