#include "io/csv.h"

#include <math.h>
#include <string.h>

#include "io/json_numbers.h"

static const char *find(const char *from, const char *end, char c) {
  const char *found = end > from ? memchr(from, c, (size_t)(end - from)) : NULL;
  return found ? found : end;
}

/* Behind the quoted cell that begins before p; the end: the quote is not closed. */
static const char *end_of_quoted(const char *p, const char *end) {
  for (;;) {
    p = find(p, end, '"');
    if (end - p < 2 || p[1] != '"')
      return p < end ? p + 1 : end;
    p += 2;
  }
}

/* The end of the line that begins at p: the place of its \n, or of the end. Only a quote that begins a cell opens one. */
static const char *end_of_line(const char *p, const char *end, int delimiter) {
  const char *line = find(p, end, '\n');
  if (delimiter < 0 || find(p, line, '"') == line)
    return line;
  for (;; p++) {
    if (p < end && *p == '"')
      p = end_of_quoted(p + 1, end);
    while (p < end && *p != (char)delimiter && *p != '\n')
      p++;
    if (p >= end || *p == '\n')
      return p;
  }
}

int64_t moth_csv_index(const char *text, int64_t size, int delimiter, int64_t *begins,
                       int64_t *ends, int64_t most) {
  const char *end = text + size;
  int64_t count = 0;
  if (delimiter >= 0 && find(text, end, '"') == end)
    delimiter = -1;
  int64_t mark = size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0; /* of UTF-8 */
  for (const char *p = text; p < end;) {
    const char *line = end_of_line(p == text ? p + mark : p, end, delimiter), *last = line;
    if (last > p && last[-1] == '\r')
      last--;
    if (last > p) {
      if (count < most) {
        begins[count] = p - text;
        ends[count] = last - text;
      }
      count++;
    }
    p = line + 1;
  }
  return count;
}

/* The next separator: cells are short, so that a loop beats memchr. */
static const char *find_near(const char *p, const char *end, char c) {
  while (p < end && *p != c)
    p++;
  return p;
}

MothCsvCell moth_csv_cell(const char *text, int64_t at, int64_t end, char delimiter) {
  const char *p = text + at, *stop = text + end;
  if (p == stop || *p != '"') {
    const char *next = find_near(p, stop, delimiter);
    return (MothCsvCell){.at = p, .n = next - p, .next = next - text + 1};
  }
  MothCsvCell cell = {.at = p + 1, .is_quoted = true, .next = end + 1};
  const char *quote = find_near(p + 1, stop, '"');
  while (stop - quote > 1 && quote[1] == '"')
    quote = find_near(quote + 2, stop, '"');
  cell.n = quote - cell.at;
  cell.is_damaged = quote == stop || (quote + 1 < stop && quote[1] != delimiter);
  if (!cell.is_damaged)
    cell.next = quote + 2 - text;
  return cell;
}

int64_t moth_csv_unquote(const MothCsvCell *cell, char *out) {
  int64_t n = 0;
  for (int64_t i = 0; i < cell->n; i++) {
    out[n++] = cell->at[i];
    i += cell->at[i] == '"'; /* two of them */
  }
  return n;
}

static bool read_number(const MothCsvTable *t, const MothCsvCell *cell, double *out) {
  if (cell->n == 0) {
    *out = NAN;
    return true;
  }
  if (moth_json_read_number(cell->at, cell->n, 0, out) == cell->n)
    return true;
  return t->other && t->other(t->ctx, cell->at, cell->n, out);
}

static bool fail(MothCsvFailure *why, int64_t line, int64_t column, int64_t cells,
                 const MothCsvCell *cell) {
  *why = (MothCsvFailure){line, column, cells, cell->at, cell->n};
  return false;
}

static bool read_line(const MothCsvTable *t, int64_t line, double *out, MothCsvFailure *why) {
  int64_t at = t->begins[line], end = t->ends[line], column = 0;
  MothCsvCell cell = {.at = t->text};
  for (; at <= end; at = cell.next, column++) {
    int32_t place = column < t->columns ? t->place[column] : -1;
    if (place >= 0) { /* most cells are plain numbers, which end where the cell does */
      int64_t behind = moth_json_read_number(t->text, end, at, &out[place]);
      if (behind > at && (behind == end || t->text[behind] == t->delimiter)) {
        cell.next = behind + 1;
        continue;
      }
    }
    cell = moth_csv_cell(t->text, at, end, t->delimiter);
    if (cell.is_damaged)
      return fail(why, line, column, -1, &cell);
    if (place >= 0 && !read_number(t, &cell, &out[place]))
      return fail(why, line, column, -2, &cell);
  }
  return column == t->columns || fail(why, line, column, column, &cell);
}

bool moth_csv_numbers(const MothCsvTable *table, int64_t first, int64_t count, double *out,
                      MothCsvFailure *why) {
  for (int64_t i = 0; i < count; i++)
    if (!read_line(table, first + i, out + i * table->width, why))
      return false;
  return true;
}
