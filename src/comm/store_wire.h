/* The frames of the store, for its server and its clients: see store.h. */
#ifndef MOTH_COMM_STORE_WIRE_H
#define MOTH_COMM_STORE_WIRE_H
#include "comm/store.h"

typedef enum MothStoreCommand {
  MOTH_STORE_HELLO = 1, /* token */
  MOTH_STORE_SET,       /* key, value */
  MOTH_STORE_APPEND,    /* key, value */
  MOTH_STORE_GET,       /* milliseconds, keys: their values, once all are there */
  MOTH_STORE_WAIT,      /* the same without values */
  MOTH_STORE_CHECK,     /* keys: "1" or "0" */
  MOTH_STORE_ADD,       /* key, amount: the sum */
  MOTH_STORE_CAS,       /* key, expected, desired: the value */
  MOTH_STORE_DELETE,    /* key: "1" or "0" */
  MOTH_STORE_COUNT      /* the number of keys */
} MothStoreCommand;

typedef enum MothStoreStatus {
  MOTH_STORE_OK = 0,
  MOTH_STORE_TIMEOUT, /* the missing keys */
  MOTH_STORE_DENIED,  /* a text */
  MOTH_STORE_REFUSED  /* a text */
} MothStoreStatus;

#define MOTH_STORE_MAGIC                                                                           \
  0x65726f7473687430ull               /* in front of a hello, where others may speak HTTP */
#define MOTH_STORE_FRAME  (64u << 20) /* the largest frame */
#define MOTH_STORE_FIELDS 4096        /* the most fields of one */

/* A buffer that grows; `failed` once there was no memory. */
typedef struct MothBuffer {
  char *data;
  size_t n, size;
  bool failed;
} MothBuffer;

void moth_buffer_add(MothBuffer *b, const void *data, size_t n);
void moth_buffer_free(MothBuffer *b);
/* Begins a frame; adds a field; ends the frame that begins at `at`, the result of begin. */
size_t moth_frame_begin(MothBuffer *b, uint8_t code);
void moth_frame_add(MothBuffer *b, MothBytes field);
void moth_frame_end(MothBuffer *b, size_t at);
/* The fields of a frame's body without its code: their number, or -1 for a malformed one. */
int moth_frame_read(const char *body, size_t n, MothBytes *fields, int most);
#endif
