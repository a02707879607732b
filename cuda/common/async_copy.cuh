// Asynchronous copies: cp.async to shared memory, and prefetches to the L2 cache.
#pragma once

// Copies 16 bytes to shared memory by cp.async; TO and FROM are offsets in bytes. Both addresses
// are aligned to 16 bytes.
template <int TO = 0, int FROM = TO>
__device__ void cp_async_16(unsigned to, const void* from)
{
    asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16;" ::"r"(to), "l"(from), "n"(TO), "n"(FROM)
                 : "memory");
}

// Prefetches `bytes` bytes to L2; `from` and `bytes` are multiples of 16. Does nothing before
// sm_90.
__device__ inline void prefetch_l2(const void* from, int bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}
