// Scans along a dim while another one is adjacent in memory: a block walks the tiles of a strip of columns, or of a part of one.
#pragma once

#include "scan_outer.cuh"

// A part of a strip: its tiles forward for their heads, where nobody else finds them, and then back.
template <typename K, typename T>
__device__ void columns(const ScanArgs& args)
{
    __shared__ typename Outer<K, T>::Shared shared;
    __shared__ Entering<K, T> entering;
    const Outer<K, T> scan(args, shared, entering);
    if (args.flags & kMarked && !args.bad[scan.strip]) return;
    const i64 phase = args.flags & (kHeads | kTails), first = args.parts == 1 ? 0 : (blockIdx.x - scan.strip * args.parts) * args.tiles;
    const int c = threadIdx.x, count = static_cast<int>(args.tiles);
    const int ahead = K::HEAD && (phase == kHeads || (phase == 0 && args.parts == 1 && count > 1)) ? count : 0;
    const int steps = phase == kHeads ? ahead : ahead + count;
    if (scan.charged()) {
        if constexpr (K::HEAD) entering.heads[c] = K::empty();
        const bool last = args.parts == 1 || phase != 0;
        entering.tails[c] = last ? K::far(K::nothing()) : scan.walk().behind(c);
    }
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const bool heads = step < ahead;
        const int t = heads ? step : count - 1 - (step - ahead);
        if constexpr (K::HEAD) {
            if (heads && scan.charged()) scan.walk().head_before(t, c) = entering.heads[c];
            if (step == ahead && scan.charged()) entering.heads[c] = args.parts > 1 ? scan.walk().ahead(c) : K::empty();
        }
        scan.run(first + t, t, heads ? kHeads : phase);
        if (count > 1) __syncthreads();
    }
    if constexpr (K::HEAD) {
        if (phase == kHeads && scan.charged()) scan.walk().head(c) = entering.heads[c];
    }
    if (phase == kTails && scan.charged()) scan.walk().tail(c) = entering.tails[c];
}
