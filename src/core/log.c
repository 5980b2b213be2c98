#include "core/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/environment.h"

static char topics[256];

__attribute__((constructor)) static void log_init(void) {
  const char *own = moth_env_text("MOTH_LOGS");
  moth_log_set(own ? own : moth_env_text("TORCH_LOGS"));
}

void moth_log_set(const char *s) {
  snprintf(topics, sizeof topics, ",%s,", s ? s : "");
}

bool moth_log_on(const char *topic) {
  char word[64];
  int n = snprintf(word, sizeof word, ",%s,", topic);
  return n > 0 && strstr(topics, word) != NULL;
}

void moth_log_write(const char *topic, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  flockfile(stderr); /* other threads' lines stand apart */
  fprintf(stderr, "[moth %s] ", topic);
  vfprintf(stderr, fmt, ap); /* of any length: generated code */
  fputc('\n', stderr);
  funlockfile(stderr);
  va_end(ap);
}
