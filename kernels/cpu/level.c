/* The instruction set of the kernels: the best one of the CPU that is built, or the one in MOTH_CPU. */
#include <stdlib.h>
#include <string.h>

#include "core/environment.h"
#include "core/error.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/loop.h"
#include "levels.h"
#include "moth.h"

int moth_isa;
#if defined(__x86_64__)
#define LEVELS "generic, avx2 or avx512"
static const char *const names[MOTH_NISAS + 1] = {"generic", "avx2", "avx512", NULL};
#elif defined(__aarch64__)
#define LEVELS "neon"
static const char *const names[MOTH_NISAS + 1] = {LEVELS, NULL};
#else
#define LEVELS "generic"
static const char *const names[MOTH_NISAS + 1] = {LEVELS, NULL};
#endif

#if defined(__x86_64__)
bool moth_cpu_has(int isa) {
  __builtin_cpu_init();
  switch (isa) {
  case MOTH_ISA_AVX2:
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi2");
  case MOTH_ISA_AVX512:
    return moth_cpu_has(MOTH_ISA_AVX2) && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
  default:
    return true;
  }
}
#else
bool moth_cpu_has(int isa) {
  return isa == MOTH_ISA_GENERIC;
}
#endif

static const bool built[MOTH_NISAS] = MOTH_LEVELS_BUILT;

__attribute__((constructor)) static void level_init(void) {
  int best = MOTH_NISAS - 1;
  while (!built[best] || !moth_cpu_has(best))
    best--;
  int want = moth_env_choice("MOTH_CPU", names);
  if (want >= 0 && !(built[want] && moth_cpu_has(want))) {
    moth_env_complain("MOTH_CPU",
                      built[want] ? "a level that this CPU has"
                                  : "a level that this build has (`make all-levels`: all)",
                      names[best]);
    want = -1;
  }
  moth_isa = want < 0 ? best : want;
}

const char *moth_cpu_level(void) {
  return names[moth_isa];
}

MothStatus moth_set_cpu_level(const char *level) {
  MOTH_TRY(moth_given("set_cpu_level", level));
  for (int i = 0; i < MOTH_NISAS; i++) {
    if (strcmp(level, names[i]) != 0)
      continue;
    if (!moth_cpu_has(i))
      return moth_fail(MOTH_ERR_VALUE, "set_cpu_level: this CPU has no %s", level);
    if (!built[i])
      return moth_fail(
          MOTH_ERR_VALUE,
          "set_cpu_level: this build has no kernels for %s: `make all-levels` compiles all", level);
    moth_isa = i;
    return MOTH_OK;
  }
  return moth_fail(MOTH_ERR_VALUE, "set_cpu_level: expected " LEVELS ", got '%s'", level);
}
