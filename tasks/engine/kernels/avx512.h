// Vectors of AVX-512, for avx512.cpp and avx512bf16.cpp.
const int W = 16, ONE_V = 4, TWO_V = 4, FOUR_V = 4, MANY_V = 4;
#define HAS_DOTS 1
const int DOTS_V = 2;
// Up to so many rows the processor's own prefetching is faster: weights alone limit the speed.
const int64_t FETCH_ROWS = 8, HALVES_FETCH_ROWS = 4;
const bool INT4_DOTS = true, INT8_DOTS = true, INT8_UNSIGNED = true;

typedef __m512 vf;
typedef int32_t vi __attribute__((vector_size(64)));

INLINE vf load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void store(float *p, vf v) { _mm512_storeu_ps(p, v); }
INLINE vi loadi(const void *p) { return (vi)_mm512_loadu_si512(p); }
INLINE vf splat(float x) { return _mm512_set1_ps(x); }
INLINE vf vzero() { return _mm512_setzero_ps(); }
INLINE vi vizero() { return (vi)_mm512_setzero_si512(); }
INLINE vf vfma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf vmin(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf vabs(vf a) { return _mm512_abs_ps(a); }
INLINE vf to_float(vi a) { return _mm512_cvtepi32_ps((__m512i)a); }
INLINE vi to_int(vf a) { return (vi)_mm512_cvtps_epi32(a); }
INLINE vf load_fp16(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
INLINE vf load_bf16(const void *p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

INLINE float sum_of(vf a) { return _mm512_reduce_add_ps(a); }
#define FOUR_SUMS 1
// The sums of four vectors. Halves are added to halves, as in `sum_of`, so the bits are the same.
INLINE void four_sums(vf a, vf b, vf c, vf d, float *to) {
    __m512 ab = _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee);
    __m512 cd = _mm512_shuffle_f32x4(c, d, 0x44) + _mm512_shuffle_f32x4(c, d, 0xee);
    __m512 all = _mm512_shuffle_f32x4(ab, cd, 0x88) + _mm512_shuffle_f32x4(ab, cd, 0xdd);
    all += _mm512_permute_ps(all, 0x4e);
    all += _mm512_permute_ps(all, 0xb1);
    __m512i firsts = _mm512_castsi128_si512(_mm_setr_epi32(0, 4, 8, 12));
    _mm_storeu_ps(to, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, all)));
}
INLINE float max_of(vf a) { return _mm512_reduce_max_ps(a); }
INLINE int32_t total_of(vi a) { return _mm512_reduce_add_epi32((__m512i)a); }
INLINE void store_bytes(int8_t *to, vi a) {  // the low byte of each lane
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)a));
}

// The nibbles of 64 bytes as unsigned bytes.
INLINE vi low_nibbles(vi a) { return (vi)_mm512_and_si512((__m512i)a, _mm512_set1_epi8(15)); }
INLINE vi high_nibbles(vi a) {
    return (vi)_mm512_and_si512(_mm512_srli_epi16((__m512i)a, 4), _mm512_set1_epi8(15));
}

// Byte I of each 32 bits, as a signed number that is 2^24 times as large.
template <int I> INLINE vf byte_of(vi a) {
    return to_float((a << (24 - 8 * I)) & (int32_t)0xff000000);
}

INLINE __m512i four_of(const int8_t *from) {
    int32_t x;
    memcpy(&x, from, 4);
    return _mm512_set1_epi32(x);
}
INLINE vi dot_add(vi sum, vi bytes, const int8_t *four) {
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)bytes, four_of(four));
}
INLINE vi dot_end(vi sum) { return sum; }

// Weights of INT8 are stored with 128 added, which is taken away from the sum beforehand.
const int32_t SUMS_BY = -128;
INLINE vi bytes_start(const int32_t *sum) { return (vi)_mm512_set1_epi32(*sum); }
INLINE vi bytes_add(vi sum, vi bytes, const int8_t *four) { return dot_add(sum, bytes, four); }

#if BF16_DOTS
INLINE vf dot_pairs(vf sum, vi a, vi b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
INLINE vf dot_halves(vf sum, vi pair, const uint16_t *two) {
    int32_t x;
    memcpy(&x, two, 4);
    return dot_pairs(sum, pair, (vi)_mm512_set1_epi32(x));
}
#endif
