/* Damaged files of moth.edge.export: edge_files RUNS SEED FILE…. Each run changes a file's header in a few places (a byte, a
 * number, a piece that is left out or comes twice), loads it and, where that works, runs it. It links libmoth_edge.a under the
 * sanitizers; whatever it does not report is fine. A run that takes long is left. */
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include "moth_edge.h"

enum { MOST = 1 << 20 };
static uint64_t state;
static sigjmp_buf left;
static long loaded, ran, late;

static uint64_t draw(uint64_t n) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state % n;
}

static size_t change_number(uint8_t *p, size_t at, size_t n) {
  static const char *const values[] = {"0",
                                       "1",
                                       "2",
                                       "3",
                                       "7",
                                       "16",
                                       "255",
                                       "65536",
                                       "4294967295",
                                       "-1",
                                       "9223372036854775807",
                                       "-9223372036854775808"};
  size_t from = at, end;
  while (from < n && (p[from] < '0' || p[from] > '9'))
    from++;
  for (end = from; end < n && p[end] >= '0' && p[end] <= '9';)
    end++;
  const char *v = values[draw(sizeof values / sizeof *values)];
  size_t len = strlen(v);
  if (from == n || n - (end - from) + len > MOST)
    return n;
  memmove(p + from + len, p + end, n - end);
  memcpy(p + from, v, len);
  return n - (end - from) + len;
}

/* Changes the n bytes of a header; returns how many there are then. */
static size_t change(uint8_t *p, size_t n) {
  size_t at = draw(n), len = draw(40);
  switch (draw(5)) {
  case 0:
    p[at] = (uint8_t)draw(256);
    return n;
  case 1:
    if (len > n - at)
      return n;
    memmove(p + at, p + at + len, n - at - len);
    return n - len;
  case 2:
    if (len > n - at || n + len > MOST)
      return n;
    memmove(p + at + len, p + at, n - at);
    return n + len;
  default:
    return change_number(p, at, n);
  }
}

static void stop(int signal) {
  (void)signal;
  siglongjmp(left, 1);
}

static void limit(int ms) {
  struct itimerval t = {.it_value = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000}};
  setitimer(ITIMER_VIRTUAL, &t, NULL);
}

static void use(MothModel *m) {
  size_t bytes = moth_edge_arena(m, NULL), all = 0;
  void *in[16] = {0}, *out[16] = {0};
  int nin = moth_edge_inputs(m), nout = moth_edge_outputs(m);
  for (int i = 0; i < nin; i++)
    all += moth_edge_input(m, i)->nbytes;
  for (int i = 0; i < nout; i++)
    all += moth_edge_output(m, i)->nbytes;
  if (!bytes || bytes > 1 << 26 || all > 1 << 26 || nin > 16 || nout > 16)
    return;
  void *arena = malloc(bytes);
  for (int i = 0; i < nin; i++)
    in[i] = calloc(1, moth_edge_input(m, i)->nbytes + 1);
  for (int i = 0; i < nout; i++) /* to the byte: the sanitizer sees what is written behind it */
    out[i] = malloc(moth_edge_output(m, i)->nbytes);
  if (arena && !moth_edge_run(m, (const void *const *)in, NULL, out, arena))
    ran++;
  for (int i = 0; i < 16; i++) {
    free(in[i]);
    free(out[i]);
  }
  free(arena);
}

/* The file, of n bytes, with len bytes of `head` for its header. */
static void one(const uint8_t *file, size_t n, size_t header, const uint8_t *head, size_t len) {
  uint8_t *bytes = aligned_alloc(64, (8 + len + n - 8 - header + 127) / 64 * 64);
  MothModel *m = NULL;
  uint64_t said = draw(50) ? len : draw(1 << 20);
  memcpy(bytes, &said, 8);
  memcpy(bytes + 8, head, len);
  memcpy(bytes + 8 + len, file + 8 + header, n - 8 - header);
  if (!sigsetjmp(left, 1)) {
    limit(200);
    if (!moth_edge_load_memory(bytes, 8 + len + n - 8 - header, &m)) {
      loaded++;
      use(m);
    }
    limit(0);
    moth_edge_free(m);
    free(bytes);
  } else {
    late++; /* and its memory is lost */
  }
}

int main(int argc, char **argv) {
  if (argc < 4)
    return 2;
  long runs = atol(argv[1]);
  state = (uint64_t)atoll(argv[2]) * 2654435761u + 88172645463325252u;
  signal(SIGVTALRM, stop);
  for (int i = 3; i < argc; i++) {
    static uint8_t file[MOST];
    uint64_t header;
    FILE *f = fopen(argv[i], "rb");
    size_t n = f ? fread(file, 1, sizeof file, f) : 0;
    memcpy(&header, file, 8);
    if (!f || n < 8 || header > n - 8)
      return printf("%s: cannot be read\n", argv[i]);
    fclose(f);
    for (long k = 0; k < runs; k++) {
      static uint8_t head[2 * MOST];
      size_t len = header;
      memcpy(head, file + 8, header);
      for (uint64_t c = draw(4) + 1; c > 0 && len; c--)
        len = change(head, len);
      one(file, n, header, head, len);
    }
  }
  printf("edge_files: %ld runs of %d files, %ld loaded, %ld ran, %ld left\n", runs, argc - 3,
         loaded, ran, late);
  return 0;
}
