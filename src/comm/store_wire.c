/* See store_wire.h. */
#include "comm/store_wire.h"

#include <stdlib.h>
#include <string.h>

void moth_buffer_add(MothBuffer *b, const void *data, size_t n) {
  if (b->failed || n == 0)
    return;
  if (b->n + n > b->size) {
    size_t size = b->size ? b->size : 256;
    while (size < b->n + n)
      size *= 2;
    char *more = realloc(b->data, size);
    if (!more) {
      b->failed = true;
      return;
    }
    b->data = more;
    b->size = size;
  }
  memcpy(b->data + b->n, data, n);
  b->n += n;
}

void moth_buffer_free(MothBuffer *b) {
  free(b->data);
  *b = (MothBuffer){0};
}

size_t moth_frame_begin(MothBuffer *b, uint8_t code) {
  size_t at = b->n;
  uint32_t length = 0;
  moth_buffer_add(b, &length, sizeof length);
  moth_buffer_add(b, &code, 1);
  return at;
}

void moth_frame_add(MothBuffer *b, MothBytes field) {
  uint32_t length = (uint32_t)field.n;
  moth_buffer_add(b, &length, sizeof length);
  moth_buffer_add(b, field.data, field.n);
}

void moth_frame_end(MothBuffer *b, size_t at) {
  if (b->failed)
    return;
  uint32_t length = (uint32_t)(b->n - at - sizeof length);
  memcpy(b->data + at, &length, sizeof length);
}

int moth_frame_read(const char *body, size_t n, MothBytes *fields, int most) {
  int count = 0;
  while (n > 0) {
    uint32_t length;
    if (n < sizeof length || count == most)
      return -1;
    memcpy(&length, body, sizeof length);
    body += sizeof length;
    n -= sizeof length;
    if (length > n)
      return -1;
    fields[count++] = (MothBytes){body, length};
    body += length;
    n -= length;
  }
  return count;
}
