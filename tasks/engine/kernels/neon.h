// Vectors of NEON, for neon.cpp and neondot.cpp.
const int W = 4, ONE_V = 16, TWO_V = 8, FOUR_V = 4, MANY_V = 4;
#define HAS_DOTS INTEGER_DOTS
#define BF16_DOTS 0
const int DOTS_V = 1;
const int64_t FETCH_ROWS = 0;
const int32_t SUMS_BY = 1;
const bool INT4_DOTS = INTEGER_DOTS, INT8_DOTS = INTEGER_DOTS, INT8_UNSIGNED = false;

typedef float32x4_t vf;
typedef int32_t vi __attribute__((vector_size(16)));

INLINE vf load(const float *p) { return vld1q_f32(p); }
INLINE void store(float *p, vf v) { vst1q_f32(p, v); }
INLINE vi loadi(const void *p) { return (vi)vld1q_u8((const uint8_t *)p); }
INLINE vf splat(float x) { return vdupq_n_f32(x); }
INLINE vf vzero() { return vdupq_n_f32(0); }
INLINE vi vizero() { return (vi)vdupq_n_s32(0); }
INLINE vf vfma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
INLINE vf vmax(vf a, vf b) { return vmaxq_f32(a, b); }
INLINE vf vmin(vf a, vf b) { return vminq_f32(a, b); }
INLINE vf vabs(vf a) { return vabsq_f32(a); }
INLINE vf to_float(vi a) { return vcvtq_f32_s32((int32x4_t)a); }
INLINE vi to_int(vf a) { return (vi)vcvtnq_s32_f32(a); }

// Bytes are loaded because a pointer may be odd for its type.
INLINE vf load_fp16(const void *p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const uint8_t *)p)));
}
INLINE vf load_bf16(const void *p) {
    uint16x4_t halves = vreinterpret_u16_u8(vld1_u8((const uint8_t *)p));
    return vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
}

// Byte I of each 32 bits, as a signed number that is 2^24 times as large.
template <int I> INLINE vf byte_of(vi a) {
    return to_float((a << (24 - 8 * I)) & (int32_t)0xff000000);
}

#if INTEGER_DOTS
// The nibbles of 16 bytes as bytes.
INLINE vi low_nibbles(vi a) { return a & 0x0f0f0f0f; }
INLINE vi high_nibbles(vi a) { return (vi)vshrq_n_u8((uint8x16_t)a, 4); }

INLINE vi dot_add(vi sum, vi bytes, const int8_t *four) {
    int32_t x;
    memcpy(&x, four, 4);
    return (vi)vdotq_s32((int32x4_t)sum, (int8x16_t)bytes, (int8x16_t)vdupq_n_s32(x));
}
INLINE vi dot_end(vi sum) { return sum; }
INLINE vi bytes_start(const int32_t *) { return vizero(); }
INLINE vi bytes_add(vi sum, vi bytes, const int8_t *four) { return dot_add(sum, bytes, four); }
#endif

#include "lanes.h"
