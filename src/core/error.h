/* Errors: a status and a thread-local message. */
#ifndef MOTH_CORE_ERROR_H
#define MOTH_CORE_ERROR_H
#include "moth.h"

/* moth_fail (moth.h): arguments may point into the old message. */

/* In a format, in front of the number of a position: "dimension " MOTH_AT "%d". Positions count from 0 here and in
 * moth_last_error; a host that counts from 1 asks moth_error_text for its own numbers. */
#define MOTH_AT "\1"
/* The message of this thread with positions that count from `base`. Valid until the next call of this. */
MOTH_API const char *moth_error_text(int base);

/* MOTH_OK, or the error of a call in which something is NULL that must not be. */
static inline MothStatus moth_given(const char *what, bool all) {
  return __builtin_expect(all, 1) ? MOTH_OK
                                  : moth_fail(MOTH_ERR_TYPE, "%s: an argument is NULL", what);
}

/* Part of the message of a device's error that a later call raises, which waited: the message names the op at fault. */
#define MOTH_FOUND_LATER "found while an earlier call ran on the device"

/* Appends to the message. */
void moth_error_append(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Puts a text in front of the message from moth_fail, in place of what inner calls have put around it: of nested
 * calls the outermost one is the user's. */
void moth_error_prefix(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Returns from the enclosing function when the status is not MOTH_OK. */
#define MOTH_TRY(expr)                                                                             \
  do {                                                                                             \
    MothStatus moth_try_status = (expr);                                                           \
    if (__builtin_expect(moth_try_status != MOTH_OK, 0))                                           \
      return moth_try_status;                                                                      \
  } while (0)

/* Jumps to `done` with the status in `status`. */
#define MOTH_GO(expr)                                                                              \
  do {                                                                                             \
    status = (expr);                                                                               \
    if (__builtin_expect(status != MOTH_OK, 0))                                                    \
      goto done;                                                                                   \
  } while (0)

#endif
