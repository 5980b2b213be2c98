/* See table.h. */
#include "profile/table.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

void moth_names_init(MothNames *names) {
  *names = (MothNames){.lock = PTHREAD_MUTEX_INITIALIZER};
}

void moth_names_free(MothNames *names) {
  for (uint32_t i = 0; i < names->n; i++)
    free((void *)names->list[i].text);
  free(names->list);
  free(names->slots);
  pthread_mutex_destroy(&names->lock);
}

/* FNV-1a. */
static uint32_t hash(int32_t outer, const char *text, int32_t line) {
  uint32_t h = 2166136261u;
  for (const char *c = text; *c; c++)
    h = (h ^ (uint8_t)*c) * 16777619u;
  h = (h ^ (uint32_t)line) * 16777619u;
  return (h ^ (uint32_t)outer) * 16777619u;
}

/* The slot of the entry, or the empty one where it belongs. */
static uint32_t *slot(const MothNames *names, int32_t outer, const char *text, int32_t line) {
  for (uint32_t i = hash(outer, text, line);; i++) {
    uint32_t *at = &names->slots[i & (names->nslots - 1)];
    const MothName *n = &names->list[*at - 1];
    if (!*at || (n->outer == outer && n->line == line && strcmp(n->text, text) == 0))
      return at;
  }
}

static bool grow(MothNames *names) {
  if (names->n == names->size) {
    uint32_t size = names->size ? 2 * names->size : 64;
    MothName *list = realloc(names->list, sizeof *list * size);
    if (!list)
      return false;
    names->list = list;
    names->size = size;
  }
  if (2 * (names->n + 1) <= names->nslots)
    return true;
  uint32_t nslots = names->nslots ? 2 * names->nslots : 256;
  uint32_t *slots = calloc(nslots, sizeof *slots);
  if (!slots)
    return false;
  free(names->slots);
  names->slots = slots;
  names->nslots = nslots;
  for (uint32_t i = 0; i < names->n; i++)
    *slot(names, names->list[i].outer, names->list[i].text, names->list[i].line) = i + 1;
  return true;
}

/* A copy in which U+FFFD stands for each byte that belongs to no UTF-8 character; NULL: no memory. */
static char *as_utf8(const char *text) {
  char *copy = malloc(3 * strlen(text) + 1), *to = copy;
  for (const char *c = text; copy && *c;) {
    size_t left = strlen(c), n = left < 4 ? left : 4;
    while (n && !moth_utf8_is_valid(c, n))
      n--;
    if (n)
      memcpy(to, c, n);
    else
      memcpy(to, "\xef\xbf\xbd", 3);
    to += n ? n : 3;
    c += n ? n : 1;
  }
  if (copy)
    *to = 0;
  return copy;
}

int32_t moth_names_add(MothNames *names, int32_t outer, const char *text, int32_t line,
                       const char **own) {
  int32_t at = -1;
  if (!moth_utf8_is_valid(text, strlen(text))) { /* files of traces are UTF-8 */
    char *clean = as_utf8(text);
    if (clean)
      at = moth_names_add(names, outer, clean, line, own);
    free(clean);
    return at;
  }
  pthread_mutex_lock(&names->lock);
  if (grow(names)) {
    uint32_t *to = slot(names, outer, text, line);
    char *copy = *to ? NULL : strdup(text);
    if (copy) {
      names->list[names->n] = (MothName){copy, outer, line};
      *to = ++names->n;
    }
    at = (int32_t)*to - 1;
    if (at >= 0 && own)
      *own = names->list[at].text;
  }
  pthread_mutex_unlock(&names->lock);
  return at;
}
