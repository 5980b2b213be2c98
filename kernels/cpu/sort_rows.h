/* Sorting and choosing in a row, for one kind of Pair: kernels/cpu/sort.c includes this once for each, after the macros
 *   Pair, NAME(f)            the type, and the names of its functions
 *   MAKE(key, pos), KEY(p), POS(p), BEFORE(a, b)
 * Positions are unique, so that there is one order. */

static void NAME(insertion)(Pair *a, int64_t n) {
  for (int64_t i = 1; i < n; i++) {
    Pair x = a[i];
    int64_t j = i;
    for (; j > 0 && BEFORE(x, a[j - 1]); j--)
      a[j] = a[j - 1];
    a[j] = x;
  }
}

/* Sorts a by key, or by position, with spare as workspace. Returns the one that has the result; NULL after an interrupt. */
static inline __attribute__((always_inline)) Pair *NAME(radix_of)(Pair *a, Pair *spare, int64_t n,
                                                                  int bytes, bool by_pos) {
  int64_t count[8][256];
  memset(count, 0, sizeof *count * (size_t)bytes);
  for (int64_t i = 0, end; i < n; i = end) {
    end = stretch(i, n);
    if (end == i)
      return NULL;
    for (int64_t j = i; j < end; j++) {
      uint64_t key = by_pos ? (uint64_t)POS(a[j]) : KEY(a[j]);
      for (int b = 0; b < bytes; b++)
        count[b][key >> 8 * b & 255]++;
    }
  }
  for (int b = 0; b < bytes; b++) {
    int64_t at[256], sum = 0;
    if (count[b][(by_pos ? (uint64_t)POS(a[0]) : KEY(a[0])) >> 8 * b & 255] == n)
      continue;
    for (int d = 0; d < 256; d++) {
      at[d] = sum;
      sum += count[b][d];
    }
    for (int64_t i = 0, end; i < n; i = end) {
      end = stretch(i, n);
      if (end == i)
        return NULL;
      for (int64_t j = i; j < end; j++)
        spare[at[(by_pos ? (uint64_t)POS(a[j]) : KEY(a[j])) >> 8 * b & 255]++] = a[j];
    }
    Pair *other = a;
    a = spare;
    spare = other;
  }
  return a;
}
static Pair *NAME(radix)(Pair *a, Pair *spare, int64_t n, int bytes) {
  switch (bytes) {
  case 1:
    return NAME(radix_of)(a, spare, n, 1, false);
  case 2:
    return NAME(radix_of)(a, spare, n, 2, false);
  case 4:
    return NAME(radix_of)(a, spare, n, 4, false);
  default:
    return NAME(radix_of)(a, spare, n, 8, false);
  }
}

/* Quickselect: moves the first k of n pairs to the front, in any order. */
static void NAME(choose)(Pair *a, int64_t n, int64_t k) {
  int64_t lo = 0, hi = n - 1;
  while (lo < hi) {
    Pair x = a[lo], y = a[lo + (hi - lo) / 2], z = a[hi];
    Pair pivot = BEFORE(x, y) ? (BEFORE(y, z)   ? y
                                 : BEFORE(x, z) ? z
                                                : x)
                              : (BEFORE(x, z)   ? x
                                 : BEFORE(y, z) ? z
                                                : y);
    int64_t i = lo, j = hi;
    while (i <= j) {
      while (BEFORE(a[i], pivot))
        i++;
      while (BEFORE(pivot, a[j]))
        j--;
      if (i <= j) {
        Pair t = a[i];
        a[i++] = a[j];
        a[j--] = t;
      }
    }
    if (k - 1 <= j)
      hi = j;
    else if (k - 1 >= i)
      lo = i;
    else
      return;
  }
}

/* Sorts n pairs by key and position. Returns a or spare, as radix. */
static Pair *NAME(in_order)(Pair *a, Pair *spare, int64_t n, int bytes) {
  if (n <= FEW) {
    NAME(insertion)(a, n);
    return a;
  }
  /* sort by position first: the stable sort by key keeps that order */
  Pair *p = NAME(radix_of)(a, spare, n, 8, true);
  return p ? NAME(radix)(p, p == a ? spare : a, n, bytes) : NULL;
}

/* Sorts all pairs of a row. Returns a or spare, as radix. */
static Pair *NAME(sort_row)(const Sort *s, const char *row, Pair *a, Pair *spare) {
  uint64_t keys[KEYS];
  int64_t n = s->split.n;
  for (int64_t i = 0; i < n; i += KEYS) {
    if (i % LOOK == 0 && moth_stopped())
      return NULL;
    int64_t m = moth_min64(KEYS, n - i);
    keys_of(s, row, i, m, keys);
    for (int64_t j = 0; j < m; j++)
      a[i + j] = MAKE(keys[j], i + j);
  }
  return NAME(radix)(a, spare, n, (int)s->item);
}

/* The first k <= FEW pairs of a row; a has the first so far in order. */
static Pair *NAME(few_of_row)(const Sort *s, const char *row, Pair *a) {
  uint64_t keys[KEYS];
  int64_t n = s->split.n, k = s->k, have = 0;
  for (int64_t i = 0; i < n; i += KEYS) {
    if (i % LOOK == 0 && moth_stopped())
      return NULL;
    int64_t m = moth_min64(KEYS, n - i);
    keys_of(s, row, i, m, keys);
    for (int64_t j = 0; j < m; j++) {
      if (have == k && keys[j] >= KEY(a[k - 1]))
        continue;
      int64_t at = have < k ? have++ : k - 1;
      for (; at > 0 && KEY(a[at - 1]) > keys[j]; at--)
        a[at] = a[at - 1];
      a[at] = MAKE(keys[j], i + j);
    }
  }
  return a;
}

/* The first k pairs of a row, in order. most_candidates(s) must not exceed its length. */
static Pair *NAME(first_of_row)(const Sort *s, const char *row, Pair *a, Pair *spare) {
  uint64_t keys[KEYS];
  uint64_t limit =
      UINT64_MAX; /* the greatest of k chosen keys: only keys below it can enter the first k */
  int64_t n = s->split.n, most = most_candidates(s), have = 0;
  bool full = false;
  for (int64_t i = 0; i < n; i += KEYS) {
    if (i % LOOK == 0 && moth_stopped())
      return NULL;
    int64_t m = moth_min64(KEYS, n - i);
    keys_of(s, row, i, m, keys);
    for (int64_t j = 0; j < m; j++) {
      if (full && keys[j] >= limit)
        continue;
      a[have++] = MAKE(keys[j], i + j);
      if (have < most)
        continue;
      NAME(choose)(a, have, s->k);
      have = s->k;
      full = true;
      limit = 0;
      for (int64_t c = 0; c < have; c++)
        limit = KEY(a[c]) > limit ? KEY(a[c]) : limit;
    }
  }
  NAME(choose)(a, have, s->k);
  return NAME(in_order)(a, spare, s->k, (int)s->item);
}

/* Rows [begin, end). */
static void NAME(sort_range)(Sort *s, int64_t begin, int64_t end) {
  int64_t n = s->split.n, inner = s->split.inner, k = s->k;
  bool some = s->part && most_candidates(s) <= n;
  int64_t most = some ? most_candidates(s) : n;
  size_t bytes = (size_t)most * sizeof(Pair) * 2;
  Pair *a = moth_alloc(bytes);
  if (!a) {
    __atomic_store_n(&s->failed, true, __ATOMIC_RELAXED);
    return;
  }
  for (int64_t r = begin; r < end && !moth_stopped(); r++) {
    int64_t from = r / inner * n * inner + r % inner, to = r / inner * k * inner + r % inner;
    const char *row = s->in + from * s->item;
    Pair *p = !some      ? NAME(sort_row)(s, row, a, a + most)
              : k <= FEW ? NAME(few_of_row)(s, row, a)
                         : NAME(first_of_row)(s, row, a, a + most);
    for (int64_t i = 0, step; p && i < k; i += step) {
      step = moth_min64(k - i, LOOK);
      if (moth_stopped())
        break;
      const char *from_row = row;
      char *values = s->values + (to + i * inner) * s->item;
      int64_t *pos = s->pos + to + i * inner;
      for (int64_t j = 0; j < step; j++)
        pos[j * inner] = POS(p[i + j]) + s->base;
      switch (s->item) {
#define VALUES(T)                                                                                  \
  for (int64_t j = 0; j < step; j++)                                                               \
  ((T *)(void *)values)[j * inner] = ((const T *)(const void *)from_row)[POS(p[i + j]) * inner]
      case 1:
        VALUES(uint8_t);
        break;
      case 2:
        VALUES(uint16_t);
        break;
      case 4:
        VALUES(uint32_t);
        break;
      default:
        VALUES(uint64_t);
      }
#undef VALUES
    }
  }
  moth_free(a, bytes);
}
#undef Pair
#undef NAME
#undef MAKE
#undef KEY
#undef POS
#undef BEFORE
