/* A strict JSON reader (RFC 8259): a pull parser, in which the caller asks for the expected next token.
 *
 * It takes any bytes, reads no byte beyond them, allocates nothing, and nests at most
 * MOTH_JSON_MAX_DEPTH deep, or as deep as `most` says. Strings are unescaped into the caller's arena, one after the other,
 * each with a NUL behind it; an arena as large as the input is always large enough. Every function
 * that fails sets "invalid JSON at byte N: what" and returns MOTH_ERR_VALUE; the reader is then
 * spent.
 *
 *     MOTH_TRY(moth_json_begin(&json, '{'));
 *     for (;;) {
 *       bool more;
 *       MOTH_TRY(moth_json_next(&json, &more));
 *       if (!more)
 *         break;
 *       MOTH_TRY(moth_json_key(&json, &name));
 *       MOTH_TRY(moth_json_skip(&json));
 *     }
 *     MOTH_TRY(moth_json_end(&json)); */
#ifndef MOTH_IO_JSON_H
#define MOTH_IO_JSON_H
#include <stddef.h>

#include "moth.h"

#define MOTH_JSON_MAX_DEPTH 64
#define MOTH_JSON_DEEPEST   1024 /* what `most` may be */

/* Text in the arena: UTF-8 of n bytes, then a NUL. It may contain NULs itself (written \u0000). */
typedef struct MothText {
  const char *text;
  size_t n;
} MothText;

typedef struct MothJson {
  const uint8_t *begin, *at, *end;
  char *arena;     /* where the next string goes; NULL: strings are checked but not kept */
  int depth, most; /* open brackets; how many there may be */
  uint64_t objects[MOTH_JSON_DEEPEST / 64]; /* bit d: the bracket at depth d is '{' */
  uint64_t started[MOTH_JSON_DEEPEST / 64]; /* bit d: it has had a member */
} MothJson;

/* Reads n bytes. The bytes and the arena stay the caller's and must outlive the reader. */
MOTH_API void moth_json_init(MothJson *json, const uint8_t *bytes, size_t n, char *arena);

/* The first byte of the next token, blanks skipped; 0 at the end of the input. Cannot fail. */
MOTH_API int moth_json_peek(MothJson *json);

/* Enters an object or an array: bracket is '{' or '['. */
MOTH_API MothStatus moth_json_begin(MothJson *json, char bracket);

/* Goes to the next member of the innermost bracket: past a comma where one is required (more is true), or out of the
 * bracket (more is false). */
MOTH_API MothStatus moth_json_next(MothJson *json, bool *more);

/* A member's name with its colon; a string; an integer, written without fraction and exponent. */
MOTH_API MothStatus moth_json_key(MothJson *json, MothText *out);
MOTH_API MothStatus moth_json_string(MothJson *json, MothText *out);
MothStatus moth_json_integer(MothJson *json, int64_t *out);

/* A number as it is written; the words true, false and null: which of them is next is known from their first letter. */
MOTH_API MothStatus moth_json_number(MothJson *json, MothText *out);
MOTH_API MothStatus moth_json_word(MothJson *json);

/* Checks any one value and drops it. */
MothStatus moth_json_skip(MothJson *json);

/* Makes sure that only blanks are left. */
MOTH_API MothStatus moth_json_end(MothJson *json);

/* Whether n bytes are valid UTF-8 (no overlong forms, no surrogates, at most U+10FFFF). */
MOTH_API bool moth_utf8_is_valid(const char *text, size_t n);

/* Bytes that moth_json_quote writes for a text, and the writing: a JSON string with its quotes, no
 * NUL behind it. The text must be valid UTF-8. Returns the end of what was written. */
size_t moth_json_quoted_size(const char *text, size_t n);
char *moth_json_quote(char *out, const char *text, size_t n);

#endif
