#include "core/error.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"

enum { MESSAGE_MAX = 2048 };
typedef struct Message {
  char text[MESSAGE_MAX]; /* with MOTH_AT in front of positions */
  char shown[MESSAGE_MAX];
  size_t begin, end; /* the part from moth_fail, without the name of a call in front */
} Message;
static _Thread_local Message *mine;

/* The message of this thread. Threads without memory for one share a static buffer. */
static Message *message(void) {
  static Message shared;
  if (!mine)
    mine = moth_thread_calloc(sizeof *mine);
  return mine ? mine : &shared;
}

static char *buffer(void) {
  return message()->text;
}

const char *moth_error_text(int base) {
  Message *m = message();
  const char *from = m->text;
  size_t n = 0;
  while (*from && n < MESSAGE_MAX - 1) {
    if (*from != MOTH_AT[0]) {
      m->shown[n++] = *from++;
      continue;
    }
    char *end;
    long long i = strtoll(++from, &end, 10);
    if (end == from)
      continue;
    int wrote =
        snprintf(m->shown + n, MESSAGE_MAX - n, "%lld", i + (i >= 0 && i < INT64_MAX ? base : 0));
    n = n + (size_t)wrote < MESSAGE_MAX ? n + (size_t)wrote : MESSAGE_MAX - 1;
    from = end;
  }
  m->shown[n] = 0;
  return m->shown;
}

const char *moth_last_error(void) {
  return moth_error_text(0);
}

MothStatus moth_fail(MothStatus status, const char *fmt, ...) {
  char text[MESSAGE_MAX];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  Message *m = message();
  m->end = strlen(text);
  memcpy(m->text, text, m->end + 1);
  bool bracket = text[0] == '[' && isalpha((unsigned char)text[1]); /* a name, not a shape */
  const char *named = bracket ? strstr(text, "] ") : NULL;
  m->begin = named ? (size_t)(named - text) + 2 : 0;
  return status;
}

void moth_error_append(const char *fmt, ...) {
  char *text = buffer();
  size_t n = strlen(text);
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text + n, MESSAGE_MAX - n, fmt, ap);
  va_end(ap);
}

void moth_error_prefix(const char *fmt, ...) {
  char text[MESSAGE_MAX];
  Message *m = message();
  if (strstr(m->text, MOTH_FOUND_LATER)) /* the error of an earlier call */
    return;
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  if (n < 0 || n >= MESSAGE_MAX)
    return;
  size_t rest = m->end - m->begin;
  if (rest > MESSAGE_MAX - (size_t)n - 1)
    rest = MESSAGE_MAX - (size_t)n - 1;
  memcpy(text + n, m->text + m->begin, rest);
  m->begin = (size_t)n;
  m->end = m->begin + rest;
  text[m->end] = 0;
  memcpy(m->text, text, m->end + 1);
}
