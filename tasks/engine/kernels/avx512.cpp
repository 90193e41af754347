// Kernels for AVX-512 with VNNI (Cascade Lake, Ice Lake, Zen 4 and later).
#if defined(__x86_64__)
#include <math.h>
#include <string.h>

#include "shoal.h"
#include "target.h"
TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#include <immintrin.h>

namespace {
#define BF16_DOTS 0
#include "avx512.h"
#include "kernels.h"
}  // namespace

extern const Kernels shoal_avx512 = {"avx512", packed_bytes, pack, product, attend, step};
TARGET_END
#endif
