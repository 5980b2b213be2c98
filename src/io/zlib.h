/* The system's zlib, opened when first needed; used by gunzip.c and zip.c. Internal. */
#ifndef MOTH_IO_ZLIB_H
#define MOTH_IO_ZLIB_H
#include <stddef.h>
#include <stdint.h>

#include "moth.h"

/* What is needed of zlib.h, whose interface has been the same since 1.2 (2003). */
typedef struct MothZStream {
  const uint8_t *next_in;
  unsigned avail_in;
  unsigned long total_in;
  uint8_t *next_out;
  unsigned avail_out;
  unsigned long total_out;
  const char *message;
  void *state;
  void *(*allocate)(void *, unsigned, unsigned);
  void (*release)(void *, void *);
  void *opaque;
  int data_type;
  unsigned long adler, reserved;
} MothZStream;

enum { Z_OK = 0, Z_STREAM_END = 1, Z_MEM_ERROR = -4, Z_BUF_ERROR = -5 };
enum { MOTH_Z_CHUNK = 1 << 23 }; /* between two looks at the interrupt flag: some 10 ms */
#define MOTH_Z_VERSION "1.2.11"

typedef struct MothZlib {
  int (*init)(MothZStream *, int window, const char *version, int size);
  int (*inflate)(MothZStream *, int flush);
  int (*reset)(MothZStream *);
  int (*end)(MothZStream *);
} MothZlib;

/* NULL if there is none on this machine. Any thread. */
const MothZlib *moth_zlib(void);

/* An error once the host's interrupt flag is set: to be called before each chunk. */
MothStatus moth_z_look(void);

#define MOTH_Z_MISSING "libz.so.1 is not on this machine; HINT: install zlib1g"

#endif
