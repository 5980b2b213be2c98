#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/thread.h"

enum { MESSAGE_MAX = 2048 };
static _Thread_local char *mine; /* MESSAGE_MAX bytes */

/* The message of this thread. Without memory for one, all such threads share a last resort. */
static char *buffer(void) {
  static char shared[MESSAGE_MAX];
  if (!mine)
    mine = moth_thread_calloc(MESSAGE_MAX);
  return mine ? mine : shared;
}

const char *moth_last_error(void) {
  return buffer();
}

MothStatus moth_fail(MothStatus status, const char *fmt, ...) {
  char text[MESSAGE_MAX];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  memcpy(buffer(), text, strlen(text) + 1);
  return status;
}

void moth_error_append(const char *fmt, ...) {
  char *message = buffer();
  size_t n = strlen(message);
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(message + n, MESSAGE_MAX - n, fmt, ap);
  va_end(ap);
}

void moth_error_prefix(const char *fmt, ...) {
  char text[MESSAGE_MAX];
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  if (n < 0 || n >= MESSAGE_MAX)
    return;
  char *message = buffer();
  size_t rest = strnlen(message, MESSAGE_MAX - (size_t)n - 1);
  memcpy(text + n, message, rest);
  text[(size_t)n + rest] = 0;
  memcpy(message, text, (size_t)n + rest + 1);
}
