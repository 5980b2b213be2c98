/* The emulation's cuFFT: transforms in double on the CPU, by the prime factors of each size. It takes row-major data
 * only, as moth gives it, wants the workspace that it has asked for, and overwrites the input of transforms to reals, as
 * cuFFT may. MOTH_EMU_CUFFT=fail lets transforms fail, so that specs can test it. */
#include "emu/cufft.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <complex>
#include <map>
#include <vector>

using Complex = std::complex<double>;

struct EmuPlan {
  int rank = 0;
  int64_t n[3], batch = 0;
  bool real_in = false, real_out = false, wide = false;
  void *workspace = nullptr;
  cudaStream_t stream = nullptr;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static std::map<cufftHandle, EmuPlan> plans;
static cufftHandle last_plan;
static const size_t WORKSPACE = 512;

struct Locked {
  Locked() { pthread_mutex_lock(&lock); }
  ~Locked() { pthread_mutex_unlock(&lock); }
};

cufftResult cufftGetVersion(int *version) {
  *version = 0;
  return CUFFT_SUCCESS;
}
cufftResult cufftCreate(cufftHandle *plan) {
  Locked locked;
  *plan = ++last_plan;
  plans[*plan] = EmuPlan();
  return CUFFT_SUCCESS;
}
cufftResult cufftDestroy(cufftHandle plan) {
  Locked locked;
  return plans.erase(plan) ? CUFFT_SUCCESS : CUFFT_INVALID_PLAN;
}
cufftResult cufftSetAutoAllocation(cufftHandle, int on) {
  return on ? CUFFT_INVALID_VALUE : CUFFT_SUCCESS;
}
cufftResult cufftXtMakePlanMany(cufftHandle plan, int rank, long long *n, long long *inembed,
                                long long, long long, cudaDataType_t in, long long *onembed,
                                long long, long long, cudaDataType_t out, long long batch,
                                size_t *workspace, cudaDataType_t computed) {
  Locked locked;
  auto found = plans.find(plan);
  bool wide = computed == CUDA_C_64F, real_in = in == CUDA_R_32F || in == CUDA_R_64F,
       real_out = out == CUDA_R_32F || out == CUDA_R_64F;
  cudaDataType_t real = wide ? CUDA_R_64F : CUDA_R_32F, whole = wide ? CUDA_C_64F : CUDA_C_32F;
  if (found == plans.end() || found->second.rank)
    return CUFFT_INVALID_PLAN;
  if (rank < 1 || rank > 3 || batch < 1 || inembed || onembed || (real_in && real_out) ||
      in != (real_in ? real : whole) || out != (real_out ? real : whole))
    return CUFFT_INVALID_VALUE;
  EmuPlan &p = found->second;
  for (int i = 0; i < rank; i++) {
    if (n[i] < 1)
      return CUFFT_INVALID_VALUE;
    p.n[i] = n[i];
  }
  p.rank = rank;
  p.batch = batch;
  p.wide = wide;
  p.real_in = real_in;
  p.real_out = real_out;
  *workspace = WORKSPACE;
  return CUFFT_SUCCESS;
}
cufftResult cufftSetWorkArea(cufftHandle plan, void *workspace) {
  Locked locked;
  plans[plan].workspace = workspace;
  return CUFFT_SUCCESS;
}
cufftResult cufftSetStream(cufftHandle plan, cudaStream_t stream) {
  Locked locked;
  plans[plan].stream = stream;
  return CUFFT_SUCCESS;
}

/* out[k] = sum over j of in[j * stride] exp(sign 2 pi i j k / n) */
static void dft(const Complex *in, Complex *out, int64_t n, int64_t stride, int sign) {
  if (n == 1) {
    out[0] = in[0];
    return;
  }
  int64_t p = 2;
  while (p * p <= n && n % p)
    p++;
  p = n % p ? n : p;
  const int64_t m = n / p;
  for (int64_t r = 0; r < p; r++)
    dft(in + r * stride, out + r * m, m, stride * p, sign);
  std::vector<Complex> part((size_t)p);
  const double step = sign * 2 * M_PI;
  for (int64_t k = 0; k < m; k++) {
    for (int64_t r = 0; r < p; r++)
      part[(size_t)r] = out[r * m + k] * std::polar(1.0, step * (double)(r * k) / (double)n);
    for (int64_t q = 0; q < p; q++) {
      Complex sum = 0;
      for (int64_t r = 0; r < p; r++)
        sum += part[(size_t)r] * std::polar(1.0, step * (double)(q * r % p) / (double)p);
      out[k + q * m] = sum;
    }
  }
}

/* x, row-major with p.n, along dimension d */
static void along(const EmuPlan &p, std::vector<Complex> &x, int d, int sign) {
  int64_t inner = 1, n = p.n[d];
  for (int i = d + 1; i < p.rank; i++)
    inner *= p.n[i];
  std::vector<Complex> line((size_t)n);
  for (int64_t at = 0; at < (int64_t)x.size(); at += n * inner)
    for (int64_t i = 0; i < inner; i++) {
      dft(&x[(size_t)(at + i)], line.data(), n, inner, sign);
      for (int64_t k = 0; k < n; k++)
        x[(size_t)(at + i + k * inner)] = line[(size_t)k];
    }
}

template <class T> static void run(const EmuPlan &p, void *in, void *out, int sign) {
  int64_t total = 1, n = p.n[p.rank - 1], half = n / 2 + 1;
  for (int i = 0; i < p.rank; i++)
    total *= p.n[i];
  const int64_t rows = total / n;
  for (int64_t b = 0; b < p.batch; b++) {
    std::vector<Complex> x((size_t)total);
    T *from = static_cast<T *>(in), *to = static_cast<T *>(out);
    if (p.real_in)
      for (int64_t i = 0; i < total; i++)
        x[(size_t)i] = from[b * total + i];
    else if (!p.real_out)
      for (int64_t i = 0; i < total; i++)
        x[(size_t)i] = {from[2 * (b * total + i)], from[2 * (b * total + i) + 1]};
    for (int64_t r = 0; p.real_out && r < rows; r++) /* half of each row is given */
      for (int64_t k = 0; k < half; k++) {
        T *z = from + 2 * (b * rows * half + r * half + k);
        x[(size_t)(r * n + k)] = {z[0], z[1]};
      }
    for (int d = 0; d < p.rank - 1; d++)
      along(p, x, d, sign);
    for (int64_t r = 0; p.real_out && r < rows; r++)
      for (int64_t k = half; k < n; k++)
        x[(size_t)(r * n + k)] = std::conj(x[(size_t)(r * n + n - k)]);
    for (int64_t r = 0; p.real_out && r < rows; r++) {
      x[(size_t)(r * n)] = x[(size_t)(r * n)].real();
      if (n % 2 == 0)
        x[(size_t)(r * n + n / 2)] = x[(size_t)(r * n + n / 2)].real();
    }
    along(p, x, p.rank - 1, sign);
    if (p.real_out)
      for (int64_t i = 0; i < total; i++)
        to[b * total + i] = (T)x[(size_t)i].real();
    const int64_t kept = p.real_in ? half : n;
    for (int64_t r = 0; !p.real_out && r < rows; r++)
      for (int64_t k = 0; k < kept; k++) {
        T *z = to + 2 * (b * rows * kept + r * kept + k);
        z[0] = (T)x[(size_t)(r * n + k)].real();
        z[1] = (T)x[(size_t)(r * n + k)].imag();
      }
  }
  if (p.real_out && in != out)
    memset(in, 0x5a, (size_t)(p.batch * rows * half) * 2 * sizeof(T));
}

cufftResult cufftXtExec(cufftHandle plan, void *in, void *out, int direction) {
  EmuPlan p;
  {
    Locked locked;
    auto found = plans.find(plan);
    if (found == plans.end() || !found->second.rank)
      return CUFFT_INVALID_PLAN;
    p = found->second;
  }
  const char *told = getenv("MOTH_EMU_CUFFT");
  int due = p.real_in ? CUFFT_FORWARD : p.real_out ? CUFFT_INVERSE : direction;
  if (!p.workspace || direction != due || (p.real_in != p.real_out && in == out))
    return CUFFT_INVALID_VALUE;
  if (told && !strcmp(told, "fail"))
    return CUFFT_EXEC_FAILED;
  cudaError_t e = moth_emu_launch(
      "cufftXtExec",
      [=]() {
        memset(p.workspace, 0x5a, WORKSPACE);
        if (p.wide)
          run<double>(p, in, out, direction);
        else
          run<float>(p, in, out, direction);
      },
      dim3(1), dim3(1), 0, p.stream);
  return e == cudaSuccess ? CUFFT_SUCCESS : CUFFT_EXEC_FAILED;
}
