// Random numbers of an element by its place, for generated kernels alone (tl.rand, tl.randn, tl.randint): element i of
// what moth.rand and moth.randn give of float32 with a generator of this seed that has drawn nothing yet.

// Word i of a seed's stream.
MOTH_FN unsigned m_random_word_(long long seed, long long i) {
  unsigned long long block = (unsigned long long)i >> 2;
  struct m_philox p = m_philox((unsigned)seed, (unsigned)((unsigned long long)seed >> 32),
                               (unsigned)block, (unsigned)(block >> 32), 0u, 0u);
  unsigned even = i & 2 ? p.v[2] : p.v[0], odd = i & 2 ? p.v[3] : p.v[1];
  return i & 1 ? odd : even;
}
#if MOTH_REAL_KIND == 1
// In [0, 1).
MOTH_FN float m_rand_at(long long seed, long long i) {
  return m_uniform_f32(m_random_word_(seed, i));
}
// Standard normal.
MOTH_FN float m_randn_at(long long seed, long long i) {
  float z0, z1;
  m_normal_f32(m_random_word_(seed, i & ~1LL), m_random_word_(seed, i | 1), &z0, &z1);
  return i & 1 ? z1 : z0;
}
#endif
#if MOTH_REAL_KIND == 3
// 32 random bits: 0 to 2^32 - 1.
MOTH_FN long long m_randint_at(long long seed, long long i) {
  return (long long)m_random_word_(seed, i);
}
#endif
