#include "core/environment.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

const char *moth_env_text(const char *name) {
  const char *s = getenv(name);
  return s && *s ? s : NULL;
}

void moth_env_complain(const char *name, const char *expected, const char *used) {
  fprintf(stderr, "[moth] warning: %s=%.100s: expected %s; using %s\n", name, moth_env_text(name),
          expected, used);
}

int64_t moth_env_integer(const char *name, int64_t low, int64_t high, int64_t otherwise) {
  const char *s = moth_env_text(name);
  if (!s)
    return otherwise;
  char *end, expected[96], used[32];
  errno = 0;
  long long n = strtoll(s, &end, 10);
  if (!errno && end != s && !*end && n >= low && n <= high)
    return n;
  snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)low,
           (long long)high);
  snprintf(used, sizeof used, "%lld", (long long)otherwise);
  moth_env_complain(name, expected, used);
  return otherwise;
}

bool moth_env_flag(const char *name, bool otherwise) {
  const char *s = moth_env_text(name);
  if (!s)
    return otherwise;
  if (!strcmp(s, "0") || !strcmp(s, "1"))
    return *s == '1';
  moth_env_complain(name, "0 or 1", otherwise ? "1" : "0");
  return otherwise;
}

int moth_env_choice(const char *name, const char *const *words) {
  const char *s = moth_env_text(name);
  if (!s)
    return -1;
  char expected[128] = "";
  for (int i = 0; words[i]; i++) {
    if (!strcmp(s, words[i]))
      return i;
    size_t n = strlen(expected);
    snprintf(expected + n, sizeof expected - n, "%s%s", i ? ", " : "", words[i]);
  }
  moth_env_complain(name, expected, "the default");
  return -1;
}

int64_t moth_addresses_left(void) {
  struct rlimit all, data;
  int64_t left = INT64_MAX;
  bool few = getrlimit(RLIMIT_AS, &all) == 0 && all.rlim_cur != RLIM_INFINITY;
  bool few_data = getrlimit(RLIMIT_DATA, &data) == 0 && data.rlim_cur != RLIM_INFINITY;
  if (!few && !few_data)
    return left;
  long pages = 0, data_pages = 0, size = sysconf(_SC_PAGESIZE);
  FILE *f = fopen("/proc/self/statm", "r");
  if (f) {
    if (fscanf(f, "%ld %*d %*d %*d %*d %ld", &pages, &data_pages) != 2)
      pages = data_pages = 0;
    fclose(f);
  }
  if (few)
    left = (int64_t)all.rlim_cur - pages * size;
  if (few_data && (int64_t)data.rlim_cur - data_pages * size < left)
    left = (int64_t)data.rlim_cur - data_pages * size;
  return left > 0 ? left : 0;
}
