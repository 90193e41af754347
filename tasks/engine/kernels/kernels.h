// All kernels of one instruction set, whose file defines the vectors before it includes this one:
// `vf` and `vi` of W lanes with their operations. Nothing here is shared between the sets, and no
// header with inline functions is included, so no code for one processor reaches another.

INLINE vf low_half(vi pair) { return (vf)(pair << 16); }
INLINE vf high_half(vi pair) { return (vf)(pair & (int32_t)0xffff0000); }
INLINE void prefetch(const void *p) { __builtin_prefetch(p); }
INLINE vi splati(int32_t x) { return vizero() + x; }

// e^x within 2e-7 of its value (Cephes' expf); a NaN stays one.
INLINE vf exponential(vf x) {
    x = vmin(splat(88.0f), vmax(splat(-87.0f), x));
    vi n = to_int(x * splat(1.44269504f));
    vf whole = to_float(n);
    vf r = vfma(whole, splat(-0.693359375f), x);
    r = vfma(whole, splat(2.12194440e-4f), r);
    vf p = splat(1.9875691500e-4f);
    p = vfma(p, r, splat(1.3981999507e-3f));
    p = vfma(p, r, splat(8.3334519073e-3f));
    p = vfma(p, r, splat(4.1665795894e-2f));
    p = vfma(p, r, splat(1.6666665459e-1f));
    p = vfma(p, r, splat(5.0000001201e-1f));
    p = vfma(p, r * r, r) + splat(1.0f);
    return (vf)((vi)p + (n << 23));
}

#include "products.h"
#include "attention.h"
#include "steps.h"
