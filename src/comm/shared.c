/* See shared.h. */
#include "comm/shared.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
  LINE = 64,
  PAGE = 4096,
  PIECE = 128 << 10,  /* is written before the other side hears of it */
  CAPACITY = 1 << 20, /* of a ring: what the caches of a core hold */
  CAPACITY_OF_MANY = 256 << 10,
  MANY = 8 /* ranks */
};

/* Of a ring: both numbers only grow. Each side counts its own for itself and tells it here; what the other one tells is
 * checked, as the other process may have been damaged. */
typedef struct Ends {
  _Alignas(LINE) _Atomic uint64_t written;
  _Alignas(LINE) _Atomic uint64_t taken;
} Ends;

/* At the front of a file: then the ends of its rings, and the rings. */
typedef struct Front {
  uint64_t nonce;
  _Alignas(LINE) _Atomic uint32_t bell;
  _Atomic uint32_t sleeps;
  _Alignas(LINE) MothCommLast last;
} Front;
_Static_assert(sizeof(Front) <= PAGE, "the front of a file is a page");

typedef struct Own {
  uint64_t written, taken; /* to this rank, and from it */
} Own;

struct MothShared {
  int rank, size, fd;
  Own *own;       /* by rank */
  uint32_t heard; /* the bell, before this rank looked for the last time */
  size_t capacity, rings, bytes;
  Front *front[]; /* by rank; NULL: not open */
};

static Ends *ends(const MothShared *s, int owner, int reader) {
  return (Ends *)((char *)s->front[owner] + PAGE) + reader;
}
static char *ring(const MothShared *s, int owner, int reader) {
  return (char *)s->front[owner] + s->rings + (size_t)reader * s->capacity;
}
static int64_t lines(int64_t n) {
  return (n + LINE - 1) / LINE * LINE;
}

static Front *map(const MothShared *s, int fd) {
  void *p = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return p == MAP_FAILED ? NULL : p;
}

MothShared *moth_shared_new(int rank, int size, int *fd, uint64_t *nonce) {
  MothShared *s = calloc(1, sizeof *s + (size_t)size * sizeof *s->front);
  if (!s)
    return NULL;
  s->rank = rank;
  s->size = size;
  s->fd = -1;
  s->own = calloc((size_t)size, sizeof *s->own);
  s->capacity = size > MANY ? CAPACITY_OF_MANY : CAPACITY;
  s->rings = PAGE + ((size_t)size * sizeof(Ends) + PAGE - 1) / PAGE * PAGE;
  s->bytes = s->rings + (size_t)size * s->capacity;
  if (s->own)
    s->fd = memfd_create("moth", MFD_CLOEXEC);
  if (s->fd < 0 || ftruncate(s->fd, (off_t)s->bytes) < 0 || !(s->front[rank] = map(s, s->fd))) {
    moth_shared_free(s);
    return NULL;
  }
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  s->front[rank]->nonce = *nonce = (uint64_t)now.tv_sec * 1000000007u ^
                                   (uint64_t)now.tv_nsec << 24 ^ (uint64_t)getpid() << 4 ^
                                   (uint64_t)(uintptr_t)s;
  *fd = s->fd;
  return s;
}

bool moth_shared_open(MothShared *s, int rank, int pid, int fd, uint64_t nonce) {
  char path[64];
  struct stat about;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
  int own = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (own < 0)
    return false;
  if (fstat(own, &about) == 0 && S_ISREG(about.st_mode) && (size_t)about.st_size == s->bytes)
    s->front[rank] = map(s, own);
  close(own);
  return s->front[rank] && s->front[rank]->nonce == nonce;
}

void moth_shared_settle(MothShared *s) {
  if (s->fd >= 0)
    close(s->fd);
  s->fd = -1;
}

void moth_shared_free(MothShared *s) {
  if (!s)
    return;
  moth_shared_settle(s);
  for (int i = 0; i < s->size; i++)
    if (s->front[i])
      munmap(s->front[i], s->bytes);
  free(s->own);
  free(s);
}

/* --- rings -------------------------------------------------------------------------------------- */

static void ring_bell(Front *f) {
  atomic_fetch_add(&f->bell, 1);
  syscall(SYS_futex, &f->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void notify(Front *f) {
  atomic_thread_fence(memory_order_seq_cst); /* it announces its sleep, and then looks */
  if (atomic_load_explicit(&f->sleeps, memory_order_relaxed))
    ring_bell(f);
}

int64_t moth_shared_write(MothShared *s, int rank, const void *data, int64_t n) {
  Ends *e = ends(s, s->rank, rank);
  uint64_t at = s->own[rank].written;
  uint64_t held = at - atomic_load_explicit(&e->taken, memory_order_acquire);
  if (held > s->capacity)
    return -1;
  int64_t space = (int64_t)(s->capacity - held);
  int64_t most = space < PIECE ? space : PIECE, k = n < most ? n : most;
  if (k <= 0)
    return 0;
  size_t place = at % s->capacity, first = s->capacity - place;
  if ((size_t)k < first)
    first = (size_t)k;
  memcpy(ring(s, s->rank, rank) + place, data, first);
  memcpy(ring(s, s->rank, rank), (const char *)data + first, (size_t)k - first);
  s->own[rank].written = at + (uint64_t)lines(k);
  atomic_store_explicit(&e->written, s->own[rank].written, memory_order_release);
  notify(s->front[rank]);
  return k;
}

const char *moth_shared_read(MothShared *s, int rank, int64_t *n) {
  Ends *e = ends(s, rank, s->rank);
  uint64_t at = s->own[rank].taken;
  uint64_t there = atomic_load_explicit(&e->written, memory_order_acquire) - at;
  size_t place = at % s->capacity, first = s->capacity - place;
  if (there > s->capacity || there % LINE) {
    *n = -1;
    return NULL;
  }
  *n = (int64_t)(there < first ? there : first);
  return there ? ring(s, rank, s->rank) + place : NULL;
}

void moth_shared_take(MothShared *s, int rank, int64_t n) {
  Ends *e = ends(s, rank, s->rank);
  s->own[rank].taken += (uint64_t)lines(n);
  atomic_store_explicit(&e->taken, s->own[rank].taken, memory_order_release);
  notify(s->front[rank]);
}

/* --- sleep -------------------------------------------------------------------------------------- */

void moth_shared_drowse(MothShared *s) {
  Front *f = s->front[s->rank];
  atomic_store(&f->sleeps, 1);
  atomic_thread_fence(memory_order_seq_cst);
  s->heard = atomic_load(&f->bell);
}

void moth_shared_sleep(MothShared *s, int milliseconds) {
  Front *f = s->front[s->rank];
  struct timespec t = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
  syscall(SYS_futex, &f->bell, FUTEX_WAIT, s->heard, &t, NULL, 0);
}

void moth_shared_rise(MothShared *s) {
  atomic_store(&s->front[s->rank]->sleeps, 0);
}

void moth_shared_wake(MothShared *s) {
  if (s)
    ring_bell(s->front[s->rank]);
}

MothCommLast *moth_shared_last(MothShared *s, int rank) {
  return &s->front[rank]->last;
}
