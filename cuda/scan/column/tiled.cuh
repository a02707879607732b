// scan/column/: the kernels that scan along a dim while another one is adjacent in memory, a file for each strategy.
//
// Scans along a dim while another one is adjacent in memory: a block walks the tiles of a strip of columns, or of a part of one.
#pragma once

#include "scan/tile/column_tile.cuh"

// Whether strips of one tile have code of their own. Indices need not be quick.
template <typename K>
constexpr bool kShort = !__is_same(typename K::Value, i64);

// Strips of one tile. Returns false, and has done nothing, where the kind cannot do those of this block.
template <typename K, typename T>
__device__ bool column_tile(const ScanArgs& args)
{
    extern __shared__ __align__(128) uint4 ring[];
    const Outer<K, T> scan(args, ring);
    return scan.template run<true>(0, 0, 0) != kUndone;
}

// A part of a strip: its tiles forward for their heads, where nobody else finds them, and then back. A strip that a kind cannot do is marked.
template <typename K, typename T>
__device__ void column_tiles(const ScanArgs& args)
{
    extern __shared__ __align__(128) uint4 ring[];
    const Outer<K, T> scan(args, ring);
    auto& entering = scan.entering;
    const int phase = scan.phase();
    const i64 first = args.parts == 1 ? 0 : (scan.item() - scan.strip * args.parts) * args.tiles;
    const int c = threadIdx.x, d = scan.tail_column(), count = static_cast<int>(args.tiles);
    const int ahead = K::HEAD && (phase == kHeads || (phase == 0 && args.parts == 1 && count > 1)) ? count : 0;
    const int steps = phase == kHeads ? ahead : ahead + count;
    if constexpr (K::HEAD) {
        if (scan.charged()) entering.heads[c] = K::empty();
    }
    if (scan.charged_tails()) entering.tails[d] = args.parts == 1 || phase != 0 ? K::far(K::nothing()) : scan.walk().behind(d);
    unsigned faults = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const bool heads = step < ahead;
        const int t = heads ? step : count - 1 - (step - ahead);
        if constexpr (K::HEAD) {
            if (heads && scan.charged()) scan.walk().head_before(t, c) = entering.heads[c];
            if (step == ahead && scan.charged()) entering.heads[c] = args.parts > 1 ? scan.walk().ahead(c) : K::empty();
        }
        faults |= scan.template run<false>(first + t, t, heads ? kHeads : phase);
        if (count > 1) __syncthreads();
    }
    if constexpr (K::HEAD) {
        if (phase == kHeads && scan.charged()) scan.walk().head(c) = entering.heads[c];
    }
    if (phase == kTails && scan.charged_tails()) scan.walk().tail(d) = entering.tails[d];
    if constexpr (kTame<K>) {
        faults = faults_of_block(faults);
        if (c == 0) tell_faults(args, scan.strip, phase, faults);
    }
}

template <typename K, typename T>
__device__ __noinline__ void column_tiles_apart(const ScanArgs& args)
{
    do_items(args, 1, [&] { column_tiles<K, T>(args); });
}

template <typename K, typename T>
__device__ void columns(const ScanArgs& args)
{
    using First = TameKind<K, T>;
    const bool again = args.flags & kMarked, one = kShort<K> && args.tiles * args.parts == 1 && !again;
    if (!one && !again) return column_tiles<First, T>(args);
    if constexpr (kShort<K>) {
        if (one && column_tile<First, T>(args)) return;
    }
    if constexpr (kTamed<K>) {
        if (some_item(args, 1)) column_tiles_apart<K, T>(args);
    }
}
