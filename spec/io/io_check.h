/* What the files of io_check share. */
#ifndef MOTH_SPEC_IO_CHECK_H
#define MOTH_SPEC_IO_CHECK_H
#include <stdint.h>
#include <stdio.h>

#include "moth.h"

extern _Atomic int io_checks, io_failures;
extern const char *io_check_dir; /* a folder to write in, empty at first */

#define CHECK(condition, ...)                                                                      \
  do {                                                                                             \
    io_checks++;                                                                                   \
    if (!(condition)) {                                                                            \
      io_failures++;                                                                               \
      printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);                                       \
      printf(__VA_ARGS__);                                                                         \
      printf("\n");                                                                                \
    }                                                                                              \
  } while (0)

/* That a call failed with this status and with a message that holds this text; `what` names the case. */
void check_fails(MothStatus status, MothStatus expected, const char *message, const char *what);
/* On the heap, at its exact size. */
uint8_t *copy_of(const void *bytes, size_t n);

void check_json(void);
void check_safetensors_cases(void);
void check_safetensors_write(void);
void check_safetensors_damage(void);
void check_idx(void);
void check_sha256(void);
void check_crc32(void);
void check_gunzip(void);
void check_map(void);
void check_write(void);
void check_faults(void);
void check_kill(void);
void check_signals(void);
#endif
