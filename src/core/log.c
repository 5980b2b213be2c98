#include "core/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/environment.h"

/* docs/environment.md says what each prints. */
static const char *const known[] = {
    "aot",    "aot_graphs", "aot_joint_graph", "autograd",   "autotuning", "blas",
    "cuda",   "device",     "dispatch",        "dist",       "fusion",     "graph_breaks",
    "guards", "kernel",     "output_code",     "recompiles",
};
enum { KNOWN = sizeof known / sizeof *known };
static signed char levels[KNOWN]; /* 0: off, 1: on, 2: in detail */
static char rank[24];

static int topic_at(const char *word, size_t n) {
  for (int i = 0; i < KNOWN; i++)
    if (strlen(known[i]) == n && memcmp(known[i], word, n) == 0)
      return i;
  return -1;
}

static void set(const char *s, bool complain) {
  memset(levels, 0, sizeof levels);
  while (s && *s) {
    size_t n = strcspn(s, ", ");
    const char *word = s;
    signed char level = 1;
    s += n + (s[n] != 0);
    if (n && (*word == '+' || *word == '-')) {
      level = *word == '+' ? 2 : 0;
      word++;
      n--;
    }
    int at = topic_at(word, n);
    if (at >= 0)
      levels[at] = level;
    else if (n == 3 && memcmp(word, "all", 3) == 0)
      memset(levels, level, sizeof levels);
    else if (n && complain) {
      char list[256] = "all";
      for (int i = 0; i < KNOWN; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), ", %s", known[i]);
      fprintf(stderr, "[moth] warning: MOTH_LOGS: there is no topic '%.*s'; topics are %s\n",
              (int)n, word, list);
    }
  }
}

__attribute__((constructor)) static void log_init(void) {
  const char *own = moth_env_text("MOTH_LOGS"), *number = moth_env_text("RANK");
  set(own ? own : moth_env_text("TORCH_LOGS"), own != NULL);
  if (number)
    snprintf(rank, sizeof rank, "[rank %.10s] ", number);
}

void moth_log_set(const char *topics) {
  set(topics, true);
}

int moth_log_level(const char *topic) {
  int at = topic_at(topic, strlen(topic));
  return at < 0 ? 0 : levels[at];
}

bool moth_log_on(const char *topic) {
  return moth_log_level(topic) > 0;
}

/* A line is written by one call of the system's, so that those of other threads and ranks do not come between. */
void moth_log_write(const char *topic, const char *fmt, ...) {
  char few[1024], *line = few;
  size_t size = sizeof few;
  for (int attempt = 0; attempt < 2; attempt++) {
    va_list ap;
    va_start(ap, fmt);
    size_t head = (size_t)snprintf(line, size, "%s[moth %s] ", rank, topic);
    size_t n = (size_t)vsnprintf(line + head, size - head, fmt, ap);
    va_end(ap);
    if (head + n + 1 < size || attempt) {
      n = head + n + 1 < size ? head + n : size - 2;
      line[n++] = '\n';
      fwrite(line, 1, n, stderr);
      break;
    }
    size = head + n + 2; /* of any length: generated code */
    line = malloc(size);
    if (!line) {
      line = few;
      size = sizeof few;
    }
  }
  if (line != few)
    free(line);
}
