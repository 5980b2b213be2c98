/* libFuzzer: the lines of any bytes lie in them, in order; cells and numbers are read within their lines. */
#include <stdlib.h>
#include <string.h>

#include "io/csv.h"

enum { COLUMNS = 2 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  if (size < 1)
    return 0;
  int delimiter = bytes[0] & 1 ? ',' : -1;
  int64_t n = (int64_t)size - 1;
  char *text = malloc(size); /* of its exact size, for the sanitizer */
  memcpy(text, bytes + 1, (size_t)n);
  int64_t count = moth_csv_index(text, n, delimiter, NULL, NULL, 0);
  int64_t *begins = calloc((size_t)count + 1, sizeof *begins);
  int64_t *ends = calloc((size_t)count + 1, sizeof *ends);
  if (moth_csv_index(text, n, delimiter, begins, ends, count) != count)
    abort();
  for (int64_t i = 0; i < count; i++) {
    if (begins[i] < (i ? ends[i - 1] : 0) || begins[i] >= ends[i] || ends[i] > n)
      abort();
    for (int64_t at = begins[i]; at <= ends[i];) {
      MothCsvCell cell = moth_csv_cell(text, at, ends[i], ',');
      if (cell.at < text + at || cell.at + cell.n > text + ends[i] || cell.next <= at)
        abort();
      char *out = malloc((size_t)cell.n + 1);
      if (cell.is_quoted && !cell.is_damaged && moth_csv_unquote(&cell, out) > cell.n)
        abort();
      free(out);
      at = cell.next;
    }
  }
  MothCsvTable table = {.text = text,
                        .begins = begins,
                        .ends = ends,
                        .columns = COLUMNS,
                        .place = (const int32_t[COLUMNS]){1, 0},
                        .width = COLUMNS,
                        .delimiter = ','};
  double *out = malloc((size_t)(count * COLUMNS) * sizeof *out + 1);
  MothCsvFailure why;
  if (!moth_csv_numbers(&table, 0, count, out, &why) && (why.line < 0 || why.line >= count))
    abort();
  free(out);
  free(begins);
  free(ends);
  free(text);
  return 0;
}
