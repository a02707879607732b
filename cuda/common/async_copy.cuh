// Asynchronous copies: cp.async to shared memory, and prefetches to the level-2 cache.
#pragma once

// Asks for 16 bytes in shared memory. Offsets are in bytes.
template <int TO = 0, int FROM = TO>
__device__ void fetch_vector(unsigned to, const void* from)
{
    asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16;" ::"r"(to), "l"(from), "n"(TO), "n"(FROM) : "memory");
}

// Brings so many bytes, in whole aligned vectors, to the level-2 cache.
__device__ inline void foresee(const void* from, int bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}
