// Kernels for AVX2 with FMA and F16C (x86-64-v3).
#if defined(__x86_64__)
#include <math.h>
#include <string.h>

#include "shoal.h"
#include "target.h"
TARGET_BEGIN("avx2,fma,f16c")
#include <immintrin.h>

namespace {
const int W = 8, ONE_V = 8, TWO_V = 4, FOUR_V = 3, MANY_V = 2;
#define HAS_DOTS 1
#define BF16_DOTS 0
const int DOTS_V = 1;
const int64_t FETCH_ROWS = 2;
const bool INT4_DOTS = true, INT8_DOTS = true, INT8_UNSIGNED = false;

typedef __m256 vf;
typedef int32_t vi __attribute__((vector_size(32)));

INLINE vf load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void store(float *p, vf v) { _mm256_storeu_ps(p, v); }
INLINE vi loadi(const void *p) { return (vi)_mm256_loadu_si256((const __m256i *)p); }
INLINE vf splat(float x) { return _mm256_set1_ps(x); }
INLINE vf vzero() { return _mm256_setzero_ps(); }
INLINE vi vizero() { return (vi)_mm256_setzero_si256(); }
INLINE vf vfma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vf vmax(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf vmin(vf a, vf b) { return _mm256_min_ps(a, b); }
INLINE vf vabs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
INLINE vf to_float(vi a) { return _mm256_cvtepi32_ps((__m256i)a); }
INLINE vi to_int(vf a) { return (vi)_mm256_cvtps_epi32(a); }
INLINE vf load_fp16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE vf load_bf16(const void *p) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

// The nibbles of 32 bytes as unsigned bytes.
INLINE vi low_nibbles(vi a) { return (vi)_mm256_and_si256((__m256i)a, _mm256_set1_epi8(15)); }
INLINE vi high_nibbles(vi a) {
    return (vi)_mm256_and_si256(_mm256_srli_epi16((__m256i)a, 4), _mm256_set1_epi8(15));
}

// Byte I of each 32 bits, as a signed number: moved to the top, where it is 2^24 times as large.
template <int I> INLINE vf byte_of(vi a) {
    const char o = -1;
    __m256i where = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(o, o, o, I, o, o, o, 4 + I, o, o, o, 8 + I, o, o, o, 12 + I));
    return _mm256_cvtepi32_ps(_mm256_shuffle_epi8((__m256i)a, where));
}

// Sums of products of nibbles and int8 stay in 16 bits: 8 x 2 x 15 x 127 is less than 2^15.
INLINE vi dot_add(vi sum, vi nibbles, const int8_t *four) {
    int32_t x;
    memcpy(&x, four, 4);
    __m256i pairs = _mm256_maddubs_epi16((__m256i)nibbles, _mm256_set1_epi32(x));
    return (vi)_mm256_add_epi16((__m256i)sum, pairs);
}
INLINE vi dot_end(vi sum) { return (vi)_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1)); }

// Sums of products of two int8: maddubs needs one of them without a sign, so that of the weight is
// moved to the other. 2 x 128 x 127 is less than 2^15.
const int32_t SUMS_BY = 1;
INLINE vi bytes_start(const int32_t *) { return vizero(); }
INLINE vi bytes_add(vi sum, vi bytes, const int8_t *four) {
    int32_t x;
    memcpy(&x, four, 4);
    __m256i sizes = _mm256_abs_epi8((__m256i)bytes);
    __m256i other = _mm256_sign_epi8(_mm256_set1_epi32(x), (__m256i)bytes);
    __m256i pairs = _mm256_maddubs_epi16(sizes, other);
    return sum + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

#include "lanes.h"
#include "kernels.h"
}  // namespace

extern const Kernels shoal_avx2 = {"avx2", packed_bytes, pack, product, attend, step};
TARGET_END
#endif
