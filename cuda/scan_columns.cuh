// Scans along a dim while another one is adjacent in memory: a block walks the tiles of a strip of columns, or of a part of one.
#pragma once

#include "scan_outer.cuh"

// A part of a strip takes steps: its tiles forward for their heads, where nobody else finds them, and then back. Returns false at a step
// that the kind cannot do.
template <typename K, typename T, typename E>
__device__ bool columns(const Outer<K, T, E>& scan, int& step)
{
    constexpr bool FIRST = kTame<K> || !kTamed<K>;  // has code of its own for heads, which is faster
    const ScanArgs& args = scan.args;
    const i64 phase = args.flags & (kHeads | kTails), first = args.parts == 1 ? 0 : (blockIdx.x - scan.strip * args.parts) * args.tiles;
    const int c = threadIdx.x, count = static_cast<int>(args.tiles);
    const int ahead = K::HEAD && (phase == kHeads || (phase == 0 && args.parts == 1 && count > 1)) ? count : 0;
    const int steps = phase == kHeads ? ahead : ahead + count;
#pragma unroll 1
    for (; step < steps; ++step) {
        const bool heads = step < ahead;
        const int t = heads ? step : count - 1 - (step - ahead);
        if constexpr (K::HEAD) {
            if (heads && scan.charged()) scan.walk().head_before(t, c) = scan.entering.heads[c];
            if (step == ahead && scan.charged()) scan.entering.heads[c] = args.parts > 1 ? scan.walk().ahead(c) : E::empty();
        }
        const bool done = FIRST && heads ? scan.run(first + t, t, kHeads) : scan.run(first + t, t, heads ? kHeads : phase);
        if (!done) return false;
        if (count > 1) __syncthreads();
    }
    if constexpr (K::HEAD) {
        if (phase == kHeads && scan.charged()) scan.walk().head(c) = scan.entering.heads[c];
    }
    if (phase == kTails && scan.charged()) scan.walk().tail(c) = scan.entering.tails[c];
    return true;
}

template <typename K, typename T>
__device__ __noinline__ void columns_apart(const ScanArgs& args, typename Outer<K, T>::Shared& shared, Entering<K, T>& entering, int step)
{
    columns(Outer<K, T>(args, shared, entering), step);
}

template <typename K, typename T>
__device__ void columns(const ScanArgs& args)
{
    using Scan = Outer<K, T>;
    using First = Outer<TameKind<K, T>, T, K>;
    __shared__ union {
        typename Scan::Shared own;
        typename First::Shared first;
    } shared;
    __shared__ Entering<K, T> entering;
    const First scan(args, shared.first, entering);
    if (scan.charged()) {
        if constexpr (K::HEAD) entering.heads[threadIdx.x] = K::empty();
        const bool last = args.parts == 1 || args.flags & (kHeads | kTails);
        entering.tails[threadIdx.x] = last ? K::far(K::nothing(), typename K::Number()) : scan.walk().behind(threadIdx.x);
    }
    int step = 0;
    if (columns(scan, step)) return;
    if constexpr (kTamed<K>) columns_apart<K, T>(args, shared.own, entering, step);
}
