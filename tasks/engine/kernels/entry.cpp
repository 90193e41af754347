// What Python calls. One call at a time computes; others wait.
#include <string.h>

#include <mutex>

#if defined(__linux__) && defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "shoal.h"

#if defined(_WIN32)
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

void shoal_pool_resize(int threads);

namespace {

std::mutex computing;

#if defined(__aarch64__)
bool has_dot_products() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#elif defined(__APPLE__)
    return true;  // the first processor of a Mac has them
#else
    return false;
#endif
}
#endif

// The kernels that this machine can run, the best first.
int supported(const Kernels **found) {
    int count = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                __builtin_cpu_supports("f16c");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vnni");
    if (avx512 && __builtin_cpu_supports("avx512bf16")) found[count++] = &shoal_avx512bf16;
    if (avx512) found[count++] = &shoal_avx512;
    if (avx2) found[count++] = &shoal_avx2;
#elif defined(__aarch64__)
    if (has_dot_products()) found[count++] = &shoal_neondot;
    found[count++] = &shoal_neon;
#endif
    found[count++] = &shoal_portable;
    return count;
}

}  // namespace

EXPORT int shoal_version() { return 2; }

// Returns the kernels with a name, or the best ones if it is empty, or null. All kernels compute
// with `threads` threads from then on.
EXPORT const Kernels *shoal_choose(const char *name, int threads) {
    std::lock_guard<std::mutex> lock(computing);
    const Kernels *all[4];
    int count = supported(all);
    for (int i = 0; i < count; i++) {
        if (*name && strcmp(name, all[i]->name)) continue;
        shoal_pool_resize(threads);
        return all[i];
    }
    return nullptr;
}

EXPORT const char *shoal_name(const Kernels *kernels) { return kernels->name; }

EXPORT int64_t shoal_packed_bytes(const Kernels *kernels, int64_t kind, int64_t group,
                                  int64_t outputs, int64_t inputs) {
    return kernels->packed_bytes(kind, group, outputs, inputs);
}

EXPORT void shoal_pack(const Kernels *kernels, const Matrix *matrix, const void *q,
                       const void *scale, const void *minimum, uint8_t *data) {
    std::lock_guard<std::mutex> lock(computing);
    kernels->pack(matrix, q, scale, minimum, data);
}

EXPORT void shoal_product(const Kernels *kernels, const Product *product) {
    std::lock_guard<std::mutex> lock(computing);
    kernels->product(product);
}

EXPORT void shoal_attend(const Kernels *kernels, const Attending *attending) {
    std::lock_guard<std::mutex> lock(computing);
    kernels->attend(attending);
}

EXPORT void shoal_step(const Kernels *kernels, const Step *step) {
    std::lock_guard<std::mutex> lock(computing);
    kernels->step(step);
}
