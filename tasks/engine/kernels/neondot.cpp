// Kernels for NEON with dot products of integers (Cortex-A76, Graviton 2, Apple M1 and later).
#if defined(__aarch64__)
#include <math.h>
#include <string.h>

#include "shoal.h"
#include "target.h"
TARGET_BEGIN("arch=armv8.2-a+dotprod")
#include <arm_neon.h>

namespace {
#define INTEGER_DOTS 1
#include "neon.h"
#include "kernels.h"
}  // namespace

extern const Kernels shoal_neondot = {"neondot", packed_bytes, pack, product, attend, step};
TARGET_END
#endif
