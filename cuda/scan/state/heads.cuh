// The first positions of packed sequences, as one bit for each position of a row, in kernel order,
// at the beginning of the workspace. A launch before the scan writes them, so that kernels read no
// bounds.
#pragma once

#include "scan/state/prefix_suffix.cuh"

// Bits of the `COUNT` positions from `first` on. There are none before a row, nor more than one
// position behind it.
template <int COUNT>
__device__ unsigned heads_at(const ScanArgs& args, i64 first)
{
    static_assert(COUNT <= 32);
    if (first > args.n || first <= -COUNT) return 0;
    const i64 position = max(first, i64(0));
    const unsigned* words = reinterpret_cast<const unsigned*>(args.states) + position / 32;
    const unsigned bits = __funnelshift_r(__ldg(words), __ldg(words + 1), position % 32) << (position - first);
    return COUNT < 32 ? bits & ((1u << COUNT) - 1) : bits;
}

// Prefetches the bits that heads_at will read.
__device__ inline void prefetch_heads(const ScanArgs& args, i64 first)
{
    if (first >= 0 && first < args.n)
        asm volatile("prefetch.global.L1 [%0];" ::"l"(reinterpret_cast<const unsigned*>(args.states) + first / 32));
}
