/* Arrays of numbers in JSON, read and written in bulk: what a tensor is in a request. Many times as fast as a reader of
 * any JSON, and resumable, so that a server can do other things in between.
 *
 *     MothNumbers r = {.at = begin};
 *     while ((n = moth_json_read_numbers(text, size, &r, values, 8192)) > 0)
 *       use(values, n); */
#ifndef MOTH_IO_JSON_NUMBERS_H
#define MOTH_IO_JSON_NUMBERS_H
#include <stddef.h>

#include "moth.h"

/* A place in an array that is read. Begins as { at = the first '[', 0 … }. */
typedef struct MothNumbers {
  int64_t at;     /* of the next byte */
  int32_t depth;  /* open brackets */
  int32_t state;  /* what may come */
  int32_t failed; /* what came is no array of numbers */
} MothNumbers;

/* Skips the array, of arrays of any depth up to 64, that begins at text[at] with '['. Gives the position behind it and
 * the number of its elements, or 0 where it has anything but numbers, brackets, commas and blanks. The numbers
 * themselves are not checked. */
MOTH_API int64_t moth_json_skip_numbers(const char *text, int64_t size, int64_t at, int64_t *count);

/* Reads at most `most` numbers on from r; gives how many. Fewer, and 0 at last: the array is at its end (r->depth = 0,
 * r->at behind it) or r->failed is set. Values are the nearest doubles; too large ones are infinite. */
MOTH_API int64_t moth_json_read_numbers(const char *text, int64_t size, MothNumbers *r, double *out,
                                        int64_t most);

/* The number at text[at], as JSON writes them: its nearest double, and the position behind it; 0: there is none. */
MOTH_API int64_t moth_json_read_number(const char *text, int64_t size, int64_t at, double *out);

/* Bytes that a number needs at most, with a comma. */
#define MOTH_JSON_NUMBER_MOST 32

/* Writes n finite numbers with commas between them, with `digits` (1 … 17) significant digits as printf's %g does;
 * gives the end. */
MOTH_API char *moth_json_write_numbers(char *out, const double *values, int64_t n, int digits);

#endif
