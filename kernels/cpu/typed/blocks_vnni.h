/* Products with weights in blocks by AVX-512 VNNI, whose lanes are groups: Note [Products with blocks] in
 * kernels/cpu/blocks.h. Included by blocks.h, for float32.
 * A loader of each type makes 256 elements four vectors of lanes, a scale for each and, of types that have them, a least
 * value. One row of activations is multiplied by what is in registers; for more, that is stored, and read by all. */

#define VNNI         __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define VNNI_INLINE  static inline VNNI __attribute__((always_inline))
#define BLOCK_UNROLL _Pragma("GCC unroll 8")

/* Group of a lane: Note [Products with blocks]. */
#define GROUP_OF(lane) (4 * ((lane) % 4) + (lane) / 4)
#define EACH_LANE(f)                                                                               \
  {                                                                                                \
    f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8), f(9), f(10), f(11), f(12), f(13), f(14), \
        f(15)                                                                                      \
  }

typedef struct Lanes {
  __m512i q[4];
  __m512 scale, least;
} Lanes;

/* A constant for each lane, of its group g. */
#define LANES_OF(name, expression)                                                                 \
  VNNI_INLINE __m512i name(void) {                                                                 \
    static const int32_t of[16] __attribute__((aligned(64))) = EACH_LANE(expression);              \
    return _mm512_load_si512(of);                                                                  \
  }

VNNI_INLINE __m512i load_16s(const uint8_t *b, int apart) {
  __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)b));
#define INSERT(i)                                                                                  \
  x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(const void *)(b + (i)*apart)), i)
  INSERT(1);
  INSERT(2);
  INSERT(3);
#undef INSERT
  return x;
}

/* Words of 2 bytes at `offset` of 8 blocks of `bytes`, each for its block's two lanes: those in the 64 bytes from `start`
 * on; others stay. */
VNNI_INLINE __m512i words_from(const uint8_t *b, int start, int bytes, int offset, __m512i others) {
#define AT(l)     (GROUP_OF(l) / 2 * bytes + offset - start)
#define WORD(l)   (short)(AT(l) / 2)
#define WITHIN(l) ((uint32_t)(AT(l) >= 0 && AT(l) < 64) << (l))
  const __m512i from =
      _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, WORD(15), WORD(14), WORD(13),
                       WORD(12), WORD(11), WORD(10), WORD(9), WORD(8), WORD(7), WORD(6), WORD(5),
                       WORD(4), WORD(3), WORD(2), WORD(1), WORD(0));
  const uint32_t within = WITHIN(0) | WITHIN(1) | WITHIN(2) | WITHIN(3) | WITHIN(4) | WITHIN(5) |
                          WITHIN(6) | WITHIN(7) | WITHIN(8) | WITHIN(9) | WITHIN(10) | WITHIN(11) |
                          WITHIN(12) | WITHIN(13) | WITHIN(14) | WITHIN(15);
  return _mm512_mask_permutexvar_epi16(others, within, from, _mm512_loadu_si512(b + start));
#undef AT
#undef WORD
#undef WITHIN
}
VNNI_INLINE __m512i words_of(const uint8_t *b, int bytes, int offset) {
  const int all = 8 * bytes;
  __m512i x = words_from(b, 0, bytes, offset, _mm512_setzero_si512());
  for (int start = 64; start <= 7 * bytes + offset; start += 64)
    x = words_from(b, start + 64 < all ? start : all - 64, bytes, offset, x);
  return x;
}
VNNI_INLINE __m512 halves_of(const uint8_t *b, int bytes, int offset) {
  return _mm512_cvtph_ps(_mm512_castsi512_si256(words_of(b, bytes, offset)));
}
/* Words of 4 bytes, likewise. */
VNNI_INLINE __m512i longs_of(const uint8_t *b, int bytes, int offset) {
  __m512i low = words_of(b, bytes, offset), high = words_of(b, bytes, offset + 2);
  return _mm512_or_si512(
      _mm512_cvtepu16_epi32(_mm512_castsi512_si256(low)),
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(high)), 16));
}

/* float16 at b, in all lanes. */
VNNI_INLINE __m512 half_at(const uint8_t *b) {
  return _mm512_set1_ps(m_block_half(b));
}
/* 16 bytes at b, in all quarters; bytes of a quarter, as `of` says, are then those of its lanes. */
VNNI_INLINE __m512i bytes_at(const uint8_t *b, __m512i of) {
  return _mm512_shuffle_epi8(
      _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)b)), of);
}

/* ---- blocks of 32 ------------------------------------------------------------------------------- */

/* 16 bytes of 8 blocks, the low half of byte i element i of 32, the high one i + 16. */
#define NIBBLE_FROM(l)  GROUP_OF(l) / 2 * 4
#define NIBBLE_SHIFT(l) GROUP_OF(l) % 2 * 4
LANES_OF(nibble_from, NIBBLE_FROM)
LANES_OF(nibble_shift, NIBBLE_SHIFT)
VNNI_INLINE void nibbles(const uint8_t *b, int apart, Lanes *w) {
  __m512i low = load_16s(b, apart), high = load_16s(b + 4 * apart, apart);
  BLOCK_UNROLL for (int i = 0; i < 4; i++) {
    __m512i two =
        _mm512_permutex2var_epi32(low, _mm512_add_epi32(nibble_from(), _mm512_set1_epi32(i)), high);
    w->q[i] = _mm512_and_si512(_mm512_srlv_epi32(two, nibble_shift()), _mm512_set1_epi8(15));
  }
}
/* What 4 bits stand for. */
VNNI_INLINE void nibbles_by(const uint8_t *table, Lanes *w) {
  const __m512i of = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table));
  BLOCK_UNROLL for (int i = 0; i < 4; i++) w->q[i] = _mm512_shuffle_epi8(of, w->q[i]);
}
/* Fifth bits, in words at `offset` of 8 blocks. */
#define FIFTH_SHIFT(l) GROUP_OF(l) % 2 * 16
#define FIFTH_BITS(l)  ((l) % 2 << 4 | (l) / 2 % 2 << 12 | (l) / 4 % 2 << 20 | (l) / 8 % 2 << 28)
LANES_OF(fifth_shift, FIFTH_SHIFT)
LANES_OF(fifth_bits, FIFTH_BITS)
VNNI_INLINE void fifths(const uint8_t *b, int bytes, int offset, Lanes *w) {
  __m512i all = longs_of(b, bytes, offset);
  BLOCK_UNROLL for (int i = 0; i < 4; i++) {
    __m512i four =
        _mm512_srlv_epi32(all, _mm512_add_epi32(fifth_shift(), _mm512_set1_epi32(4 * i)));
    w->q[i] = _mm512_or_si512(w->q[i], _mm512_permutexvar_epi32(four, fifth_bits()));
  }
}

VNNI_INLINE void lanes_q4_0(const uint8_t *b, Lanes *w) {
  nibbles(b + 2, 18, w);
  w->scale = halves_of(b, 18, 0);
}
VNNI_INLINE void lanes_q4_1(const uint8_t *b, Lanes *w) {
  nibbles(b + 4, 20, w);
  w->scale = halves_of(b, 20, 0);
  w->least = halves_of(b, 20, 2);
}
VNNI_INLINE void lanes_q5_0(const uint8_t *b, Lanes *w) {
  nibbles(b + 6, 22, w);
  fifths(b, 22, 2, w);
  w->scale = halves_of(b, 22, 0);
}
VNNI_INLINE void lanes_q5_1(const uint8_t *b, Lanes *w) {
  nibbles(b + 8, 24, w);
  fifths(b, 24, 4, w);
  w->scale = halves_of(b, 24, 0);
  w->least = halves_of(b, 24, 2);
}
VNNI_INLINE void lanes_iq4_nl(const uint8_t *b, Lanes *w) {
  static const uint8_t table[16] = MOTH_BLOCK_UNEVEN;
  nibbles(b + 2, 18, w);
  nibbles_by(table, w);
  w->scale = halves_of(b, 18, 0);
}
/* The scale is 2 to the power of a byte, less 128; of 0 and 1, no normal number. */
VNNI_INLINE void lanes_mxfp4(const uint8_t *b, Lanes *w) {
  static const uint8_t table[16] = MOTH_BLOCK_E2M1;
  uint64_t all = 0;
  for (int i = 0; i < 8; i++)
    all |= (uint64_t)b[17 * i] << 8 * i;
  nibbles(b + 1, 17, w);
  nibbles_by(table, w);
  static const uint8_t of[16] = EACH_LANE(GROUP_OF);
  __m128i two =
      _mm_unpacklo_epi8(_mm_cvtsi64_si128((long long)all), _mm_cvtsi64_si128((long long)all));
  __m512i n = _mm512_cvtepu8_epi32(
      _mm_shuffle_epi8(two, _mm_loadu_si128((const __m128i *)(const void *)of)));
  __m512i bits = _mm512_slli_epi32(_mm512_sub_epi32(n, _mm512_set1_epi32(1)), 23);
  bits = _mm512_mask_mov_epi32(bits, _mm512_cmplt_epi32_mask(n, _mm512_set1_epi32(2)),
                               _mm512_sllv_epi32(_mm512_set1_epi32(0x200000), n));
  w->scale = _mm512_castsi512_ps(bits);
}

/* From neighbours to lanes. */
VNNI_INLINE void turn(__m512i a, __m512i b, __m512i c, __m512i d, Lanes *w) {
  __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
  __m512i ab_high = _mm512_unpackhi_epi32(a, b), cd_high = _mm512_unpackhi_epi32(c, d);
  w->q[0] = _mm512_unpacklo_epi64(ab, cd);
  w->q[1] = _mm512_unpackhi_epi64(ab, cd);
  w->q[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
  w->q[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}
VNNI_INLINE void lanes_q8_0(const uint8_t *b, Lanes *w) {
  __m512i x[4];
  BLOCK_UNROLL for (int i = 0; i < 4; i++) {
    const uint8_t *two = b + 68 * i;
    x[i] = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)(two + 2))),
        _mm256_loadu_si256((const __m256i *)(const void *)(two + 36)), 1);
    x[i] = _mm512_xor_si512(x[i], _mm512_set1_epi8(-128));
  }
  turn(x[0], x[1], x[2], x[3], w);
  w->scale = halves_of(b, 34, 0);
}

/* ---- blocks of 256 ------------------------------------------------------------------------------ */

/* 128 bytes of 4 bits: byte i of 32 has elements i and i + 32 of 64. */
#define PAIR_FROM(l)  (GROUP_OF(l) / 4 * 8 + GROUP_OF(l) % 2 * 4)
#define PAIR_SHIFT(l) GROUP_OF(l) / 2 % 2 * 4
LANES_OF(pair_from, PAIR_FROM)
LANES_OF(pair_shift, PAIR_SHIFT)
VNNI_INLINE void pairs(const uint8_t *b, Lanes *w) {
  __m512i low = _mm512_loadu_si512(b), high = _mm512_loadu_si512(b + 64);
  BLOCK_UNROLL for (int i = 0; i < 4; i++) {
    __m512i two =
        _mm512_permutex2var_epi32(low, _mm512_add_epi32(pair_from(), _mm512_set1_epi32(i)), high);
    w->q[i] = _mm512_and_si512(_mm512_srlv_epi32(two, pair_shift()), _mm512_set1_epi8(15));
  }
}
/* Adds a bit of each: bit i / 32 of byte i % 32. It goes up to `to`. */
#define BIT_FROM(l) GROUP_OF(l) % 2 * 4
#define BIT_UP(l)   (32 - GROUP_OF(l) / 2) /* to bit 0 */
LANES_OF(bit_from, BIT_FROM)
LANES_OF(bit_up, BIT_UP)
VNNI_INLINE void bits_of_32(const uint8_t *b, int to, Lanes *w) {
  __m512i all = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)b));
  BLOCK_UNROLL for (int i = 0; i < 4; i++) {
    __m512i x = _mm512_permutexvar_epi32(_mm512_add_epi32(bit_from(), _mm512_set1_epi32(i)), all);
    x = _mm512_rolv_epi32(x, _mm512_add_epi32(bit_up(), _mm512_set1_epi32(to)));
    w->q[i] = _mm512_or_si512(w->q[i], _mm512_and_si512(x, _mm512_set1_epi8((char)(1 << to))));
  }
}
/* 64 bytes of 2 bits: byte i of 32 has elements i, i + 32, i + 64 and i + 96 of 128. They go up to bit `to`. */
#define CRUMB_FROM(l) (GROUP_OF(l) / 8 * 8 + GROUP_OF(l) % 2 * 4)
#define CRUMB_UP(l)   (32 - GROUP_OF(l) / 2 % 4 * 2)
LANES_OF(crumb_from, CRUMB_FROM)
LANES_OF(crumb_up, CRUMB_UP)
VNNI_INLINE __m512i crumbs(const uint8_t *b, int to, int i) {
  __m512i x = _mm512_permutexvar_epi32(_mm512_add_epi32(crumb_from(), _mm512_set1_epi32(i)),
                                       _mm512_loadu_si512(b));
  x = _mm512_rolv_epi32(x, _mm512_add_epi32(crumb_up(), _mm512_set1_epi32(to)));
  return _mm512_and_si512(x, _mm512_set1_epi8((char)(3 << to)));
}

/* Byte `first` of a lane's word, and above it byte `second` or 0 (-1), of 16 bytes. */
#define TWO_BYTES(first, second) ((first) | ((second)&255) << 8 | (int)0x80800000u)
/* 8 scales and 8 least values of 6 bits, in 12 bytes from b + 4 on; their factors are before them. */
#define FACTOR(l)                                                                                  \
  TWO_BYTES(GROUP_OF(l) < 8 ? 4 + GROUP_OF(l) / 2 : 8 + GROUP_OF(l) / 2,                           \
            GROUP_OF(l) < 8 ? -1 : GROUP_OF(l) / 2)
#define FACTOR_MASK(l) (GROUP_OF(l) < 8 ? 63 : 15)
#define LESS(l)                                                                                    \
  TWO_BYTES(GROUP_OF(l) < 8 ? 8 + GROUP_OF(l) / 2 : 8 + GROUP_OF(l) / 2,                           \
            GROUP_OF(l) < 8 ? -1 : 4 + GROUP_OF(l) / 2)
#define LESS_SHIFT(l) (GROUP_OF(l) < 8 ? 0 : 4)
LANES_OF(factor_from, FACTOR)
LANES_OF(factor_mask, FACTOR_MASK)
LANES_OF(less_from, LESS)
LANES_OF(less_shift, LESS_SHIFT)
VNNI_INLINE void factors_of_6_bits(const uint8_t *b, Lanes *w) {
  const __m512i top = _mm512_set1_epi32(48);
  __m512i s = bytes_at(b, factor_from()), m = bytes_at(b, less_from());
  s = _mm512_or_si512(_mm512_and_si512(s, factor_mask()),
                      _mm512_and_si512(_mm512_srli_epi32(s, 10), top));
  m = _mm512_or_si512(_mm512_and_si512(_mm512_srlv_epi32(m, less_shift()), factor_mask()),
                      _mm512_and_si512(_mm512_srli_epi32(m, 10), top));
  w->scale = _mm512_mul_ps(half_at(b), _mm512_cvtepi32_ps(s));
  w->least = _mm512_mul_ps(_mm512_set1_ps(-m_block_half(b + 2)), _mm512_cvtepi32_ps(m));
}

VNNI_INLINE void lanes_q4_k(const uint8_t *b, Lanes *w) {
  pairs(b + 16, w);
  factors_of_6_bits(b, w);
}
VNNI_INLINE void lanes_q5_k(const uint8_t *b, Lanes *w) {
  pairs(b + 48, w);
  bits_of_32(b + 16, 4, w);
  factors_of_6_bits(b, w);
}

/* 4 bits: byte i of 64 has elements i and i + 64 of 128. */
#define SIXTH_FROM(l)  (GROUP_OF(l) / 8 * 16 + GROUP_OF(l) % 4 * 4)
#define SIXTH_SHIFT(l) GROUP_OF(l) / 4 % 2 * 4
#define BYTE_OF(l)     ((GROUP_OF(l)) | (int)0x80808000u)
LANES_OF(sixth_from, SIXTH_FROM)
LANES_OF(sixth_shift, SIXTH_SHIFT)
LANES_OF(byte_of, BYTE_OF)
VNNI_INLINE void lanes_q6_k(const uint8_t *b, Lanes *w) {
  __m512i low = _mm512_loadu_si512(b), high = _mm512_loadu_si512(b + 64);
  BLOCK_UNROLL for (int i = 0; i < 4; i++) {
    __m512i two =
        _mm512_permutex2var_epi32(low, _mm512_add_epi32(sixth_from(), _mm512_set1_epi32(i)), high);
    two = _mm512_and_si512(_mm512_srlv_epi32(two, sixth_shift()), _mm512_set1_epi8(15));
    w->q[i] = _mm512_or_si512(two, crumbs(b + 128, 4, i));
  }
  __m512i s = bytes_at(b + 192, byte_of());
  s = _mm512_srai_epi32(_mm512_slli_epi32(s, 24), 24);
  w->scale = _mm512_mul_ps(half_at(b + 208), _mm512_cvtepi32_ps(s));
}
VNNI_INLINE void lanes_q2_k(const uint8_t *b, Lanes *w) {
  BLOCK_UNROLL for (int i = 0; i < 4; i++) w->q[i] = crumbs(b + 16, 0, i);
  __m512i s = bytes_at(b, byte_of());
  w->scale = _mm512_mul_ps(half_at(b + 80),
                           _mm512_cvtepi32_ps(_mm512_and_si512(s, _mm512_set1_epi32(15))));
  w->least = _mm512_mul_ps(_mm512_set1_ps(-m_block_half(b + 82)),
                           _mm512_cvtepi32_ps(_mm512_srli_epi32(s, 4)));
}
/* 16 scales of 6 bits, in 12 bytes 2 bytes after those that are read. */
#define THIRD(l)       TWO_BYTES(2 + GROUP_OF(l) % 8, 10 + GROUP_OF(l) % 4)
#define THIRD_SHIFT(l) (GROUP_OF(l) / 8 * 4)
#define THIRD_TOP(l)   (4 + GROUP_OF(l) / 4 * 2)
LANES_OF(third_from, THIRD)
LANES_OF(third_shift, THIRD_SHIFT)
LANES_OF(third_top, THIRD_TOP)
VNNI_INLINE void lanes_q3_k(const uint8_t *b, Lanes *w) {
  BLOCK_UNROLL for (int i = 0; i < 4; i++) w->q[i] = crumbs(b + 32, 0, i);
  bits_of_32(b, 2, w);
  __m512i s = bytes_at(b + 94, third_from());
  __m512i low = _mm512_and_si512(_mm512_srlv_epi32(s, third_shift()), _mm512_set1_epi32(15));
  __m512i top = _mm512_and_si512(_mm512_srlv_epi32(s, third_top()), _mm512_set1_epi32(48));
  s = _mm512_sub_epi32(_mm512_or_si512(low, top), _mm512_set1_epi32(32));
  w->scale = _mm512_mul_ps(half_at(b + 108), _mm512_cvtepi32_ps(s));
}
VNNI_INLINE void lanes_tq2_0(const uint8_t *b, Lanes *w) {
  BLOCK_UNROLL for (int i = 0; i < 4; i++) w->q[i] = crumbs(b, 0, i);
  w->scale = half_at(b + 64);
}
/* 8 scales of 6 bits: their low 4 bits in 4 bytes, their high 2 in 2 before those. */
#define UNEVEN(l)       TWO_BYTES(4 + GROUP_OF(l) / 4, 2 + GROUP_OF(l) / 8)
#define UNEVEN_SHIFT(l) (GROUP_OF(l) / 2 % 2 * 4)
#define UNEVEN_TOP(l)   (4 + GROUP_OF(l) / 2 % 4 * 2)
LANES_OF(uneven_from, UNEVEN)
LANES_OF(uneven_shift, UNEVEN_SHIFT)
LANES_OF(uneven_top, UNEVEN_TOP)
VNNI_INLINE void lanes_iq4_xs(const uint8_t *b, Lanes *w) {
  static const uint8_t table[16] = MOTH_BLOCK_UNEVEN;
  nibbles(b + 8, 16, w);
  nibbles_by(table, w);
  __m512i s = bytes_at(b, uneven_from());
  __m512i low = _mm512_and_si512(_mm512_srlv_epi32(s, uneven_shift()), _mm512_set1_epi32(15));
  __m512i top = _mm512_and_si512(_mm512_srlv_epi32(s, uneven_top()), _mm512_set1_epi32(48));
  s = _mm512_sub_epi32(_mm512_or_si512(low, top), _mm512_set1_epi32(32));
  w->scale = _mm512_mul_ps(half_at(b), _mm512_cvtepi32_ps(s));
}

/* Digits, in bytes of the words from TRIT_FROM on, as m_block_ternary has them. Those of the last group are in one word. */
#define TRIT_FROM(l)  (GROUP_OF(l) < 10 ? GROUP_OF(l) % 2 * 4 : GROUP_OF(l) < 15 ? 8 : 12)
#define TRIT_NEXT(l)  (GROUP_OF(l) < 15)
#define POWER_OF_3(n) ((n) == 0 ? 1 : (n) == 1 ? 3 : (n) == 2 ? 9 : (n) == 3 ? 27 : 81)
#define TRIT_POWER(l)                                                                              \
  (0x10001 * (GROUP_OF(l) < 10   ? POWER_OF_3(GROUP_OF(l) / 2)                                     \
              : GROUP_OF(l) < 15 ? POWER_OF_3(GROUP_OF(l) - 10)                                    \
                                 : 1))
LANES_OF(trit_from, TRIT_FROM)
LANES_OF(trit_next, TRIT_NEXT)
LANES_OF(trit_power, TRIT_POWER)
VNNI_INLINE void lanes_tq1_0(const uint8_t *b, Lanes *w) {
  const __m512i low = _mm512_set1_epi16(255), three = _mm512_set1_epi16(3);
  __m512i all = _mm512_maskz_loadu_epi32(0x1fff, b), from = trit_from(), power = trit_power();
  BLOCK_UNROLL for (int i = 0; i < 4; i++) {
    __m512i x = _mm512_permutexvar_epi32(from, all);
    __m512i even = _mm512_and_si512(_mm512_mullo_epi16(_mm512_and_si512(x, low), power), low);
    __m512i odd = _mm512_and_si512(_mm512_mullo_epi16(_mm512_srli_epi16(x, 8), power), low);
    even = _mm512_srli_epi16(_mm512_mullo_epi16(even, three), 8);
    odd = _mm512_andnot_si512(low, _mm512_mullo_epi16(odd, three));
    w->q[i] = _mm512_or_si512(even, odd);
    from = _mm512_add_epi32(from, trit_next());
    power = _mm512_mask_mullo_epi16(power, 3u << 30, power, three);
  }
  w->scale = half_at(b + 52);
}

/* ---- blocks of 64 ------------------------------------------------------------------------------- */

/* 8 bytes for 16 elements, the low halves before the high ones. */
#define EIGHT_FROM(l) (2 * GROUP_OF(l))
LANES_OF(eight_from, EIGHT_FROM)
VNNI_INLINE void lanes_nvfp4(const uint8_t *b, Lanes *w) {
  static const uint8_t table[16] = MOTH_BLOCK_E2M1;
  __m512i x[2];
  BLOCK_UNROLL for (int i = 0; i < 2; i++) {
    const uint8_t *two = b + 72 * i + 4;
    x[i] = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)two)),
        _mm256_loadu_si256((const __m256i *)(const void *)(two + 36)), 1);
  }
  BLOCK_UNROLL for (int i = 0; i < 2; i++) {
    __m512i two =
        _mm512_permutex2var_epi32(x[0], _mm512_add_epi32(eight_from(), _mm512_set1_epi32(i)), x[1]);
    w->q[i] = _mm512_and_si512(two, _mm512_set1_epi8(15));
    w->q[i + 2] = _mm512_and_si512(_mm512_srli_epi16(two, 4), _mm512_set1_epi8(15));
  }
  nibbles_by(table, w);
  int32_t s[4];
  for (int i = 0; i < 4; i++)
    memcpy(s + i, b + 36 * i, 4);
  static const uint8_t of[16] = EACH_LANE(GROUP_OF);
  __m512i n = _mm512_cvtepu8_epi32(_mm_shuffle_epi8(
      _mm_setr_epi32(s[0], s[1], s[2], s[3]), _mm_loadu_si128((const __m128i *)(const void *)of)));
  __m512i exponent = _mm512_and_si512(_mm512_srli_epi32(n, 3), _mm512_set1_epi32(15));
  __m512i rest = _mm512_and_si512(n, _mm512_set1_epi32(7));
  __mmask16 normal = _mm512_test_epi32_mask(exponent, exponent);
  rest = _mm512_mask_add_epi32(rest, normal, rest, _mm512_set1_epi32(8));
  exponent = _mm512_mask_sub_epi32(_mm512_set1_epi32(-10), normal, exponent, _mm512_set1_epi32(11));
  w->scale = _mm512_maskz_scalef_ps(_mm512_cmpneq_epi32_mask(n, _mm512_set1_epi32(127)),
                                    _mm512_cvtepi32_ps(rest), _mm512_cvtepi32_ps(exponent));
}

/* What is no whole span, unpacked to neighbours. */
VNNI_INLINE void lanes_of_span(const Span *s, Lanes *w) {
  const __m512i of = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  turn(_mm512_load_si512(s->q), _mm512_load_si512(s->q + 64), _mm512_load_si512(s->q + 128),
       _mm512_load_si512(s->q + 192), w);
  w->scale = _mm512_permutexvar_ps(of, _mm512_loadu_ps(s->scale));
  w->least = _mm512_permutexvar_ps(of, _mm512_loadu_ps(s->least));
}

/* Codes of several elements: a table's values, one after the other, are what takes the time. */
#define LANES_BY_SPAN(name)                                                                        \
  VNNI_INLINE void lanes_##name(const uint8_t *b, Lanes *w) {                                      \
    Span s;                                                                                        \
    memset(s.least, 0, sizeof s.least);                                                            \
    m_unpack_##name(b, s.q, s.scale, s.least);                                                     \
    lanes_of_span(&s, w);                                                                          \
  }
LANES_BY_SPAN(iq1_s)
LANES_BY_SPAN(iq1_m)
LANES_BY_SPAN(iq2_xxs)
LANES_BY_SPAN(iq2_xs)
LANES_BY_SPAN(iq2_s)
LANES_BY_SPAN(iq3_xxs)
LANES_BY_SPAN(iq3_s)

/* ---- products ----------------------------------------------------------------------------------- */

/* Sums of the lanes of each of four vectors, in one order. */
VNNI_INLINE __m128 totals(const __m512 *acc) {
  __m128 x[4];
  BLOCK_UNROLL for (int i = 0; i < 4; i++) {
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(acc[i]), _mm512_extractf32x8_ps(acc[i], 1));
    x[i] = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  }
  __m128 a = _mm_add_ps(_mm_unpacklo_ps(x[0], x[1]), _mm_unpackhi_ps(x[0], x[1]));
  __m128 b = _mm_add_ps(_mm_unpacklo_ps(x[2], x[3]), _mm_unpackhi_ps(x[2], x[3]));
  return _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
}

/* Adds the sums of a chunk to results of AT_ONCE columns, or of one. */
VNNI_INLINE void put_totals(const MothBlocks *p, const Chunk *c, int64_t r, int column, int columns,
                            const __m512 *acc) {
  __m128 sum = totals(acc);
  if (columns < AT_ONCE) {
    put(p, c, r, column, _mm_cvtss_f32(sum));
    return;
  }
  float *out = (float *)p->out + r * p->out_row + c->j;
  __m128 begin = c->at     ? _mm_loadu_ps(out)
                 : p->bias ? _mm_loadu_ps((const float *)p->bias + c->j)
                           : _mm_setzero_ps();
  _mm_storeu_ps(out, _mm_add_ps(sum, begin));
}

/* The sum of a span's products, added to acc. before: what dots begin with, of types without least values. */
VNNI_INLINE __m512 add_span(__m512 acc, const Lanes *w, const __m512i *x, __m512 scales,
                            const float *sums, bool leasts) {
  __m512i dot = leasts ? _mm512_setzero_si512() : _mm512_loadu_si512(sums);
  BLOCK_UNROLL for (int v = 0; v < 4; v++) dot = _mm512_dpbusd_epi32(dot, w->q[v], x[v]);
  acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(w->scale, scales), acc);
  return leasts ? _mm512_fmadd_ps(w->least, _mm512_loadu_ps(sums), acc) : acc;
}

/* Up to AT_ONCE of a row of activations, of whole spans [at, at + spans) of the weight; last: what is no whole span of
 * each column, or NULL. */
typedef void (*Loader)(const uint8_t *b, Lanes *w);
VNNI_INLINE void row_of_chunk(const MothBlocks *p, const Chunk *c, int64_t bytes, Loader load,
                              bool leasts, int columns, int64_t ahead, const Span *last) {
  __m512 acc[AT_ONCE] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                         _mm512_setzero_ps()};
  const uint8_t *b = p->weight + c->j * p->weight_row + c->at * bytes;
  const int8_t *x = p->values + c->at * SPAN;
  const float *scales = (const float *)p->scales + c->at * GROUPS,
              *sums = (const float *)p->sums + c->at * GROUPS;
  for (int s = 0; s < c->spans; s++, b += bytes, x += SPAN, scales += GROUPS, sums += GROUPS) {
    __m512i four[4];
    __m512 by = _mm512_loadu_ps(scales);
    BLOCK_UNROLL for (int v = 0; v < 4; v++) four[v] = _mm512_loadu_si512(x + 64 * v);
    BLOCK_UNROLL for (int i = 0; i < columns; i++) {
      const uint8_t *of = b + i * p->weight_row;
      Lanes w;
      for (int l = 0; l < bytes; l += LINE)
        __builtin_prefetch(of + ahead + l);
      load(of, &w);
      acc[i] = add_span(acc[i], &w, four, by, sums, leasts);
    }
  }
  if (last) {
    __m512i four[4];
    __m512 by = _mm512_loadu_ps(scales);
    BLOCK_UNROLL for (int v = 0; v < 4; v++) four[v] = _mm512_loadu_si512(x + 64 * v);
    BLOCK_UNROLL for (int i = 0; i < columns; i++) {
      Lanes w;
      lanes_of_span(last + i, &w);
      acc[i] = add_span(acc[i], &w, four, by, sums, leasts);
    }
  }
  put_totals(p, c, 0, 0, columns, acc);
}

/* Columns [from, to) of one row of activations. What is read ahead is the next columns' same place. */
VNNI_INLINE void one_row(const MothBlocks *p, int64_t bytes, Loader load, bool leasts) {
  Chunk c = {0};
  int64_t columns = AT_ONCE * p->weight_row, ahead = columns;
  while (ahead < AHEAD_OF_BLOCKS)
    ahead += columns;
  for (c.j = p->from; c.j < p->to; c.j += AT_ONCE) {
    c.columns = p->to - c.j < AT_ONCE ? (int)(p->to - c.j) : AT_ONCE;
    for (c.at = 0; c.at < p->spans; c.at += SPANS) {
      int64_t k = c.at * SPAN, n = p->k - k < SPANS * SPAN ? p->k - k : SPANS * SPAN;
      Span rest[AT_ONCE], *last = n % SPAN ? rest : NULL;
      c.spans = (int)(n / SPAN);
      if (last)
        for (int i = 0; i < c.columns; i++)
          kinds[p->type].unpack(p->weight + (c.j + i) * p->weight_row +
                                    bytes_of(p, k + c.spans * SPAN),
                                n % SPAN, rest + i);
      if (c.columns == AT_ONCE)
        row_of_chunk(p, &c, bytes, load, leasts, AT_ONCE, ahead, last);
      else {
        Chunk one = c;
        for (one.columns = 1; one.j < p->to; one.j++, last += last != NULL)
          row_of_chunk(p, &one, bytes, load, leasts, 1, ahead, last);
      }
    }
  }
}

/* Unpacks n elements of a row to lanes. */
VNNI_INLINE void to_lanes(const uint8_t *b, int64_t n, int64_t bytes, Loader load, bool leasts,
                          int type, Span *s) {
  for (; n > 0; n -= SPAN, b += bytes, s++) {
    Lanes w;
    for (int l = 0; l < bytes; l += LINE)
      __builtin_prefetch(b + AHEAD_OF_BLOCKS + l);
    if (n < SPAN) {
      kinds[type].unpack(b, n, s);
      lanes_of_span(s, &w);
    } else
      load(b, &w);
    BLOCK_UNROLL for (int v = 0; v < 4; v++) _mm512_store_si512(s->q + 64 * v, w.q[v]);
    _mm512_storeu_ps(s->scale, w.scale);
    if (leasts)
      _mm512_storeu_ps(s->least, w.least);
  }
}

/* All AT_ONCE columns, or one, of some rows. */
VNNI_INLINE void vnni_tile(const MothBlocks *p, const Chunk *chunk, int64_t r, int column, int rows,
                           int columns, bool leasts) {
  __m512 acc[2][AT_ONCE];
  BLOCK_UNROLL for (int i = 0; i < rows; i++) BLOCK_UNROLL for (int c = 0; c < AT_ONCE; c++)
      acc[i][c] = _mm512_setzero_ps();
  for (int s = 0; s < chunk->spans; s++) {
    int64_t at = r * p->spans + chunk->at + s;
    const int8_t *x = p->values + at * SPAN;
    const float *scales = (const float *)p->scales + at * GROUPS,
                *sums = (const float *)p->sums + at * GROUPS;
    __m512i dot[2][AT_ONCE];
    BLOCK_UNROLL for (int i = 0; i < rows; i++) {
      __m512i begin =
          leasts ? _mm512_setzero_si512() : _mm512_loadu_si512(sums + i * p->spans * GROUPS);
      BLOCK_UNROLL for (int c = 0; c < columns; c++) dot[i][c] = begin;
    }
    BLOCK_UNROLL for (int v = 0; v < 4; v++) {
      __m512i four[2];
      BLOCK_UNROLL for (int i = 0; i < rows; i++) {
        four[i] = _mm512_loadu_si512(x + i * p->spans * SPAN + 64 * v);
        __asm__("" : "+v"(four[i])); /* stays in a register: loads take as long as products */
      }
      BLOCK_UNROLL for (int c = 0; c < columns; c++) {
        __m512i w = _mm512_load_si512(chunk->w[column + c][s].q + 64 * v);
        BLOCK_UNROLL for (int i = 0; i < rows; i++) dot[i][c] =
            _mm512_dpbusd_epi32(dot[i][c], w, four[i]);
      }
    }
    __m512 by[2], sum[2];
    BLOCK_UNROLL for (int i = 0; i < rows; i++) {
      by[i] = _mm512_loadu_ps(scales + i * p->spans * GROUPS);
      if (leasts)
        sum[i] = _mm512_loadu_ps(sums + i * p->spans * GROUPS);
    }
    BLOCK_UNROLL for (int c = 0; c < columns; c++) {
      const Span *w = &chunk->w[column + c][s];
      __m512 scale = _mm512_loadu_ps(w->scale);
      BLOCK_UNROLL for (int i = 0; i < rows; i++) {
        acc[i][c] =
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[i][c]), _mm512_mul_ps(scale, by[i]), acc[i][c]);
        if (leasts)
          acc[i][c] = _mm512_fmadd_ps(_mm512_loadu_ps(w->least), sum[i], acc[i][c]);
      }
    }
  }
  BLOCK_UNROLL for (int i = 0; i < rows; i++) put_totals(p, chunk, r + i, column, columns, acc[i]);
}

VNNI_INLINE void vnni_chunk(const MothBlocks *p, const Chunk *c, bool leasts) {
  int64_t r = 0;
  if (c->columns < AT_ONCE) {
    for (; r < p->rows; r++)
      for (int i = 0; i < c->columns; i++)
        vnni_tile(p, c, r, i, 1, 1, leasts);
    return;
  }
  for (; r + 2 <= p->rows; r += 2)
    vnni_tile(p, c, r, 0, 2, AT_ONCE, leasts);
  for (; r < p->rows; r++)
    vnni_tile(p, c, r, 0, 1, AT_ONCE, leasts);
}
static VNNI void vnni_leasts(const MothBlocks *p, const Chunk *c) {
  vnni_chunk(p, c, true);
}
static VNNI void vnni_no_leasts(const MothBlocks *p, const Chunk *c) {
  vnni_chunk(p, c, false);
}

#define VNNI_TYPE(NAME, name, number, elements, bytes, zero, leasts)                               \
  static VNNI void to_lanes_##name(const uint8_t *b, int64_t n, Span *s) {                         \
    to_lanes(b, n, SPAN / (elements) * (bytes), lanes_##name, leasts, MOTH_BLOCK_##NAME, s);       \
  }                                                                                                \
  static VNNI void one_row_##name(const MothBlocks *p) {                                           \
    one_row(p, SPAN / (elements) * (bytes), lanes_##name, leasts);                                 \
  }
MOTH_BLOCK_TYPES(VNNI_TYPE)

static const struct {
  void (*to_lanes)(const uint8_t *b, int64_t n, Span *s);
  void (*one_row)(const MothBlocks *p);
} vnni[] = {
#define VNNI_KIND(NAME, name, number, elements, bytes, zero, leasts)                               \
  {to_lanes_##name, one_row_##name},
    MOTH_BLOCK_TYPES(VNNI_KIND)};

/* ---- activations -------------------------------------------------------------------------------- */

/* A whole span: see quantize, to the bit. */
static VNNI void quantize_span(const float *in, int zero, bool leasts, int8_t *values,
                               float *scales, float *sums) {
  int8_t q[SPAN] __attribute__((aligned(64)));
  float of[GROUPS];
  for (int half = 0; half < SPAN / 32; half++, in += 32) {
    const __m512i sign = _mm512_set1_epi32(0x7fffffff);
    __m512 a = _mm512_loadu_ps(in), b = _mm512_loadu_ps(in + 16);
    int32_t big =
        _mm512_reduce_max_epi32(_mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), sign),
                                                 _mm512_and_si512(_mm512_castps_si512(b), sign)));
    float scale = m_f32_from_bits((uint32_t)big) * (float)(1.0 / 127), inverse = 0;
    if (big >= 0x7f800000) {
      scale = __builtin_nanf("");
      a = b = _mm512_setzero_ps();
    } else if (scale >= 1e-30f)
      inverse = 1 / scale;
    else
      scale = 1;
    of[2 * half] = of[2 * half + 1] = scale;
    __m512i x = _mm512_cvtps_epi32(_mm512_mul_ps(a, _mm512_set1_ps(inverse)));
    __m512i y = _mm512_cvtps_epi32(_mm512_mul_ps(b, _mm512_set1_ps(inverse)));
    _mm_store_si128((__m128i *)(void *)(q + 32 * half), _mm512_cvtsepi32_epi8(x));
    _mm_store_si128((__m128i *)(void *)(q + 32 * half + 16), _mm512_cvtsepi32_epi8(y));
  }
  Lanes w;
  turn(_mm512_load_si512(q), _mm512_load_si512(q + 64), _mm512_load_si512(q + 128),
       _mm512_load_si512(q + 192), &w);
  __m512i sum = _mm512_setzero_si512();
  BLOCK_UNROLL for (int v = 0; v < 4; v++) {
    _mm512_storeu_si512(values + 64 * v, w.q[v]);
    sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), w.q[v]);
  }
  const __m512i turned = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  __m512 scale = _mm512_permutexvar_ps(turned, _mm512_loadu_ps(of));
  _mm512_storeu_ps(scales, scale);
  if (leasts)
    _mm512_storeu_ps(sums, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sum)));
  else
    _mm512_storeu_si512(sums, _mm512_mullo_epi32(sum, _mm512_set1_epi32(-zero)));
}
