/* libFuzzer: any bytes are read or refused; what strings and lists of numbers are read can be written and read again. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "io/json_numbers.h"

static void check_string(const uint8_t *bytes, size_t n) {
  MothJson json;
  MothText text, again;
  char *arena = malloc(n + 1);
  moth_json_init(&json, bytes, n, arena);
  if (moth_json_string(&json, &text) == MOTH_OK) {
    size_t size = moth_json_quoted_size(text.text, text.n);
    char *quoted = malloc(size), *again_arena = malloc(size);
    if (moth_json_quote(quoted, text.text, text.n) != quoted + size)
      abort();
    moth_json_init(&json, (const uint8_t *)quoted, size, again_arena);
    if (moth_json_string(&json, &again) != MOTH_OK || moth_json_end(&json) != MOTH_OK ||
        again.n != text.n || memcmp(again.text, text.text, text.n) != 0)
      abort();
    free(quoted);
    free(again_arena);
  }
  free(arena);
}

static void check_numbers(const char *text, int64_t size) {
  enum { MOST = 7 };
  int64_t count = 0, n, total = 0, end = moth_json_skip_numbers(text, size, 0, &count);
  MothNumbers r = {0};
  double values[MOST], again[MOST];
  char written[1 + MOST * MOTH_JSON_NUMBER_MOST];
  while ((n = moth_json_read_numbers(text, size, &r, values, MOST)) > 0) {
    total += n;
    for (int64_t i = 0; i < n; i++)
      if (!isfinite(values[i]))
        return;
    written[0] = '[';
    char *at = moth_json_write_numbers(written + 1, values, n, 17);
    *at++ = ']';
    MothNumbers own = {0};
    if (moth_json_read_numbers(written, at - written, &own, again, MOST) != n ||
        memcmp(values, again, (size_t)n * sizeof *values) != 0)
      abort();
  }
  if (!r.failed && r.depth == 0 && total > 0 && (end != r.at || count != total))
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
  MothJson json;
  int64_t integer;
  moth_json_init(&json, bytes, n, NULL);
  if (moth_json_skip(&json) == MOTH_OK && moth_json_end(&json) == MOTH_OK && json.depth != 0)
    abort();
  moth_json_init(&json, bytes, n, NULL);
  (void)moth_json_integer(&json, &integer);
  check_string(bytes, n);
  check_numbers((const char *)bytes, (int64_t)n);
  return 0;
}
