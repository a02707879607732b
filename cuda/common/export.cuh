// The exported kernels: symbols, launch bounds and the argument.
#pragma once

#include "common/constants.gen.cuh"

// EXPORT(family_kernel_dtype, ctas, Args, body) defines the symbol that the driver looks up, with
// registers for at least `ctas` CTAs on an SM. The argument is one struct of 8-byte fields.
#define EXPORT(symbol, blocks, Args, ...) EXPORT_THREADS(symbol, kBlockThreads, blocks, Args, __VA_ARGS__)

// EXPORT for CTAs of another size.
#define EXPORT_THREADS(symbol, threads, blocks, Args, ...) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) symbol(const __grid_constant__ Args args) \
    { \
        __VA_ARGS__; \
    }
