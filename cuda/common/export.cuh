// The exported kernels: their symbols, launch bounds and argument.
#pragma once

// Threads in a block.
constexpr int kBlock = 256;

// EXPORT(family_kernel_dtype, blocks, Args, body): the symbol that the driver looks up, with registers for so many blocks at once on a
// multiprocessor. Its argument is one struct of 8-byte fields.
#define EXPORT(symbol, blocks, Args, ...) EXPORT_THREADS(symbol, kBlock, blocks, Args, __VA_ARGS__)

// The same for blocks of another size.
#define EXPORT_THREADS(symbol, threads, blocks, Args, ...) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) symbol(const __grid_constant__ Args args) { __VA_ARGS__; }
