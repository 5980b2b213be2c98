/* Texts by number, for names and places of events. Any thread may add; a text keeps its address. */
#ifndef MOTH_PROFILE_TABLE_H
#define MOTH_PROFILE_TABLE_H
#include <pthread.h>
#include <stdint.h>

#include "moth.h"

typedef struct MothName {
  const char *text; /* owned */
  int32_t outer, line;
} MothName;

typedef struct MothNames {
  MothName *list;
  uint32_t n, size;
  uint32_t *slots, nslots; /* a hash table of numbers + 1; nslots is a power of two */
  pthread_mutex_t lock;
} MothNames;

void moth_names_init(MothNames *names);
void moth_names_free(MothNames *names);
/* The number of the entry with these three; -1: no memory. *own: its own copy of the text, in which U+FFFD stands for
 * bytes that are not UTF-8. */
MOTH_API int32_t moth_names_add(MothNames *names, int32_t outer, const char *text, int32_t line,
                                const char **own);
#endif
