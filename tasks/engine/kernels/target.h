// Compiles a part of a file for an instruction set, without flags of the compiler.
#pragma once
#define INLINE static inline __attribute__((always_inline))
#define SHOAL_PRAGMA(x) _Pragma(#x)
#if defined(__clang__)
#define TARGET_BEGIN(set) \
    SHOAL_PRAGMA(clang attribute push(__attribute__((target(set))), apply_to = function))
#define TARGET_END SHOAL_PRAGMA(clang attribute pop)
#else
#define TARGET_BEGIN(set) SHOAL_PRAGMA(GCC push_options) SHOAL_PRAGMA(GCC target(set))
#define TARGET_END SHOAL_PRAGMA(GCC pop_options)
#endif
