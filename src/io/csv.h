/* Tables as text (RFC 4180): lines, cells, and columns of numbers, read many at a time. Any locale; the text is any
 * bytes, of which the lines that moth_csv_index gave are used. */
#ifndef MOTH_IO_CSV_H
#define MOTH_IO_CSV_H
#include <stddef.h>

#include "moth.h"

/* Finds the lines that are not empty: line i is text[begins[i]] up to ends[i], without \n or \r\n. A line break in
 * a cell that begins with a double quote ends no line, where cells are parted by the character `delimiter`; -1: there
 * are no cells. Gives how many there are; writes at most `most` of them (0: only counts). */
MOTH_API int64_t moth_csv_index(const char *text, int64_t size, int delimiter, int64_t *begins,
                                int64_t *ends, int64_t most);

typedef struct MothCsvCell {
  const char *at; /* the cell, or what is between its quotes */
  int64_t n;
  int64_t next;    /* where the next cell begins; beyond the line's end: this was the last */
  bool is_quoted;  /* it may contain "" */
  bool is_damaged; /* a quote is not closed, or more than a separator follows it */
} MothCsvCell;

/* The cell that begins at `at`, at most `end`, of a line that ends at `end`. Cannot fail. */
MOTH_API MothCsvCell moth_csv_cell(const char *text, int64_t at, int64_t end, char delimiter);

/* The text of a quoted cell, each "" as one quote, to out (cell->n bytes at most); gives its length. */
MOTH_API int64_t moth_csv_unquote(const MothCsvCell *cell, char *out);

/* What columns to read. `other` reads a cell that is no plain decimal number, false: it is none. */
typedef struct MothCsvTable {
  const char *text;
  const int64_t *begins, *ends;
  int64_t columns; /* cells of each line */
  const int32_t
      *place;    /* of each column: where its values go in a row of the result, -1: nowhere */
  int64_t width; /* of a row of the result */
  char delimiter;
  bool (*other)(void *ctx, const char *at, int64_t n, double *out);
  void *ctx;
} MothCsvTable;

typedef struct MothCsvFailure {
  int64_t line, column; /* from 0 */
  int64_t cells;        /* in that line; -1: a quote is not closed; -2: the cell is no number */
  const char *at;       /* the cell */
  int64_t n;
} MothCsvFailure;

/* Reads `count` lines from `first` on to out[count][width]: the nearest doubles, NaN of empty cells. false: *why. */
MOTH_API bool moth_csv_numbers(const MothCsvTable *table, int64_t first, int64_t count, double *out,
                               MothCsvFailure *why);

#endif
