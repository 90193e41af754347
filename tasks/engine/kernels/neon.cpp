// Kernels for NEON, which every 64-bit ARM processor has.
#if defined(__aarch64__)
#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "shoal.h"
#include "target.h"

namespace {
#define INTEGER_DOTS 0
#include "neon.h"
#include "kernels.h"
}  // namespace

extern const Kernels shoal_neon = {"neon", packed_bytes, pack, product, attend, step};
#endif
