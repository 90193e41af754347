// Kernels in the vector extensions of GCC and clang, for other processors. On x86-64 and ARM they
// are for tests only.
#include <math.h>
#include <string.h>

#include "shoal.h"
#include "target.h"

namespace {
const int W = 4, ONE_V = 16, TWO_V = 8, FOUR_V = 4, MANY_V = 4;
#define HAS_DOTS 0
#define BF16_DOTS 0
const int32_t SUMS_BY = 1;
const bool INT4_DOTS = false, INT8_DOTS = false, INT8_UNSIGNED = false;

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

INLINE vf load(const float *p) {
    vf v;
    memcpy(&v, p, 16);
    return v;
}
INLINE void store(float *p, vf v) { memcpy(p, &v, 16); }
INLINE vi loadi(const void *p) {
    vi v;
    memcpy(&v, p, 16);
    return v;
}
INLINE vf splat(float x) { return vf{x, x, x, x}; }
INLINE vf vzero() { return vf{}; }
INLINE vi vizero() { return vi{}; }
INLINE vf vfma(vf a, vf b, vf c) {
#if defined(__FMA__) || defined(__aarch64__)
    for (int i = 0; i < W; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#else
    return a * b + c;
#endif
}
INLINE vf vmax(vf a, vf b) { return a > b ? a : b; }
INLINE vf vmin(vf a, vf b) { return a < b ? a : b; }
INLINE vf vabs(vf a) { return (vf)((vi)a & 0x7fffffff); }
INLINE vf to_float(vi a) { return __builtin_convertvector(a, vf); }
INLINE vi to_int(vf a) {  // to nearest
    vf half = (vf)(((vi)a & (int32_t)0x80000000) | 0x3f000000);
    return __builtin_convertvector(a + half, vi);
}
INLINE vf load_bf16(const void *p) {
    uint16_t h[4];
    memcpy(h, p, 8);
    return (vf)(vi{h[0], h[1], h[2], h[3]} << 16);
}
INLINE vf load_fp16(const void *p) {  // finite values
    uint16_t h[4];
    memcpy(h, p, 8);
    vi bits = vi{h[0], h[1], h[2], h[3]};
    vf size = (vf)((bits & 0x7fff) << 13) * splat(0x1p112f);
    return (vf)((vi)size | (bits & 0x8000) << 16);
}
template <int I> INLINE vf byte_of(vi a) { return to_float(a << (24 - 8 * I) & (int32_t)0xff000000); }

#include "lanes.h"
#include "kernels.h"
}  // namespace

extern const Kernels shoal_portable = {"portable", packed_bytes, pack, product, attend, step};
