#include "core/thread.h"

#include "core/behind.h"
#include "core/kept.h"

#include <pthread.h>
#include <stdlib.h>

_Thread_local MothKeeper *moth_keeper;
_Thread_local MothBehind *moth_behind;

typedef struct Piece {
  struct Piece *next;
  max_align_t bytes[];
} Piece;

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void free_pieces(void *p) {
  for (Piece *piece = p, *next; piece; piece = next) {
    next = piece->next;
    free(piece);
  }
}

static void make_key(void) {
  pthread_key_create(&key, free_pieces);
}

void *moth_thread_calloc(size_t n) {
  pthread_once(&once, make_key);
  Piece *p = calloc(1, sizeof *p + n);
  if (!p)
    return NULL;
  p->next = pthread_getspecific(key);
  pthread_setspecific(key, p);
  return p->bytes;
}
