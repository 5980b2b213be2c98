/* libFuzzer: any bytes are read or refused; what strings are read can be written and read again. */
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

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
  return 0;
}
