// The AVX-512 kernels on a processor without AVX-512: what avx512.cpp and avx512bf16.cpp contain,
// with each instruction of avx512.h written as a loop (Intel, Software Developer's Manual, volume
// 2). So the indices, the edges and the scales of the kernels are those that ship.
//
// Compiled with BF16_DOTS=0 or 1, in place of avx512.cpp or avx512bf16.cpp (test_emulated.py).
#include <math.h>
#include <string.h>

#include "shoal.h"
#include "target.h"

namespace {

typedef float __m512 __attribute__((vector_size(64)));
typedef int32_t __m512i __attribute__((vector_size(64)));
typedef uint32_t words __attribute__((vector_size(64)));
typedef uint16_t halves __attribute__((vector_size(64)));
typedef int8_t bytes __attribute__((vector_size(64)));
typedef uint8_t sizes __attribute__((vector_size(64)));
typedef halves __m512bh;
typedef uint16_t __m256i __attribute__((vector_size(32)));
typedef int8_t __m128i __attribute__((vector_size(16)));
typedef float __m128 __attribute__((vector_size(16)));

INLINE __m512 _mm512_set1_ps(float x) { return __m512{} + x; }
INLINE __m512i _mm512_set1_epi32(int32_t x) { return __m512i{} + x; }
INLINE __m512i _mm512_set1_epi8(char x) { return (__m512i)(bytes{} + (int8_t)x); }
INLINE __m512 _mm512_setzero_ps() { return __m512{}; }
INLINE __m512i _mm512_setzero_si512() { return __m512i{}; }
INLINE __m512 _mm512_castsi512_ps(__m512i a) { return (__m512)a; }
INLINE __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
INLINE __m512i _mm512_slli_epi32(__m512i a, int by) { return (__m512i)((words)a << by); }
INLINE __m512i _mm512_srli_epi16(__m512i a, int by) { return (__m512i)((halves)a >> by); }
INLINE __m512 _mm512_abs_ps(__m512 a) { return (__m512)((__m512i)a & 0x7fffffff); }
INLINE __m512 _mm512_cvtepi32_ps(__m512i a) { return __builtin_convertvector(a, __m512); }

INLINE __m512 _mm512_loadu_ps(const void *p) {
    __m512 v;
    memcpy(&v, p, 64);
    return v;
}
INLINE void _mm512_storeu_ps(void *p, __m512 v) { memcpy(p, &v, 64); }
INLINE __m512i _mm512_loadu_si512(const void *p) {
    __m512i v;
    memcpy(&v, p, 64);
    return v;
}
INLINE __m256i _mm256_loadu_si256(const __m256i *p) {
    __m256i v;
    memcpy(&v, p, 32);
    return v;
}

INLINE __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
    for (int i = 0; i < 16; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}
// The second operand where one is a NaN.
INLINE __m512 _mm512_max_ps(__m512 a, __m512 b) { return a > b ? a : b; }
INLINE __m512 _mm512_min_ps(__m512 a, __m512 b) { return a < b ? a : b; }
INLINE __m512i _mm512_cvtps_epi32(__m512 a) {  // to nearest even; what has no number is 2^31
    __m512i out;
    for (int i = 0; i < 16; i++)
        out[i] = fabsf(a[i]) < 2147483648.0f ? (int32_t)__builtin_rintf(a[i]) : INT32_MIN;
    return out;
}
INLINE __m512i _mm512_cvtepu16_epi32(__m256i a) {
    __m512i out;
    for (int i = 0; i < 16; i++) out[i] = a[i];
    return out;
}
INLINE __m512 _mm512_cvtph_ps(__m256i a) {
    __m512 out;
    for (int i = 0; i < 16; i++) {
        int exponent = a[i] >> 10 & 31, fraction = a[i] & 1023;
        float size = exponent == 31 ? (fraction ? NAN : INFINITY)
                     : exponent     ? ldexpf((float)(1024 + fraction), exponent - 25)
                                    : ldexpf((float)fraction, -24);
        out[i] = a[i] >> 15 ? -size : size;
    }
    return out;
}
INLINE __m128i _mm512_cvtepi32_epi8(__m512i a) {
    __m128i out;
    for (int i = 0; i < 16; i++) out[i] = (int8_t)a[i];
    return out;
}
INLINE void _mm_storeu_si128(__m128i *p, __m128i v) { memcpy(p, &v, 16); }
INLINE __m128i _mm_setr_epi32(int32_t a, int32_t b, int32_t c, int32_t d) {
    int32_t all[4] = {a, b, c, d};
    __m128i out;
    memcpy(&out, all, 16);
    return out;
}
INLINE __m512i _mm512_castsi128_si512(__m128i a) {  // the rest is not defined
    __m512i out = __m512i{} + 0x55555555;
    memcpy(&out, &a, 16);
    return out;
}
INLINE __m128 _mm512_castps512_ps128(__m512 a) {
    __m128 out;
    memcpy(&out, &a, 16);
    return out;
}
INLINE void _mm_storeu_ps(float *p, __m128 v) { memcpy(p, &v, 16); }
// Two quarters of `a` and two of `b`.
INLINE __m512 _mm512_shuffle_f32x4(__m512 a, __m512 b, int which) {
    __m512 out;
    for (int i = 0; i < 16; i++) {
        int from = (which >> 2 * (i / 4) & 3) * 4 + i % 4;
        out[i] = i < 8 ? a[from] : b[from];
    }
    return out;
}
INLINE __m512 _mm512_permute_ps(__m512 a, int which) {  // within each quarter
    __m512 out;
    for (int i = 0; i < 16; i++) out[i] = a[i / 4 * 4 + (which >> 2 * (i % 4) & 3)];
    return out;
}
INLINE __m512 _mm512_permutexvar_ps(__m512i which, __m512 a) {
    __m512 out;
    for (int i = 0; i < 16; i++) out[i] = a[which[i] & 15];
    return out;
}
// The sequences that compilers use for these: halves with halves.
INLINE float _mm512_reduce_add_ps(__m512 a) {
    for (int step = 8; step; step /= 2)
        for (int i = 0; i < step; i++) a[i] += a[i + step];
    return a[0];
}
INLINE float _mm512_reduce_max_ps(__m512 a) {
    for (int step = 8; step; step /= 2)
        for (int i = 0; i < step; i++) a[i] = a[i] > a[i + step] ? a[i] : a[i + step];
    return a[0];
}
INLINE int32_t _mm512_reduce_add_epi32(__m512i a) {
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) sum += a[i];
    return sum;
}
// Adds the products of 4 unsigned bytes of `a` with 4 signed ones of `b`, without saturation.
INLINE __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
    sizes unsigned_ones = (sizes)a;
    bytes signed_ones = (bytes)b;
    for (int i = 0; i < 16; i++)
        for (int j = 4 * i; j < 4 * i + 4; j++)
            sum[i] += (int32_t)unsigned_ones[j] * (int32_t)signed_ones[j];
    return sum;
}
// Two fused steps, the odd element first. Subnormal numbers count as zero.
INLINE float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0, x) : x; }
INLINE float half_of(halves a, int i) {
    uint32_t bits = (uint32_t)a[i] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return flushed(value);
}
INLINE __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
    for (int i = 0; i < 16; i++)
        for (int j = 2 * i + 1; j >= 2 * i; j--)
            sum[i] = flushed(__builtin_fmaf(half_of(a, j), half_of(b, j), flushed(sum[i])));
    return sum;
}

#include "avx512.h"
#include "kernels.h"

}  // namespace

#if BF16_DOTS
extern const Kernels shoal_avx512bf16 = {"avx512bf16", packed_bytes, pack, product, attend, step};
#else
extern const Kernels shoal_avx512 = {"avx512", packed_bytes, pack, product, attend, step};
#endif
