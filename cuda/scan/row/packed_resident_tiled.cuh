// scan/row/: the kernels that scan along the dim that is adjacent in memory, a file for each strategy.
//
// Scans along a dim whose elements a block can walk.
//
//     row     `height` warps own a row
//     tiles   a block walks the tiles of a row, or of a part of one
//     rows    a warp owns `width` whole rows, laid end to end; row boundaries cut heads and tails
#pragma once

#include "scan/state/fallback.cuh"
#include "scan/tile/row_tile.cuh"

// The part of a tile, or of a row, that a warp owns, its element 0 being at `first`.
template <int I>
__device__ Span span_of(i64 row, i64 first, i64 n, int lead)
{
    return {row, first, first < 0 ? lead : 0, static_cast<int>(max(min(n - first, static_cast<i64>(32 * I)), i64(0))), false};
}

// Whether the operands lie as Line's DENSE wants it, as the host says.
template <typename K>
__device__ bool dense(const ScanArgs& args)
{
    return !__is_same(typename K::Value, i64) && args.flags & kDense;
}

// Returns false if the kind cannot do the rows of this block.
template <typename K, typename T, bool DENSE, bool LEADS = false, bool FULL = false>
__device__ bool row(const ScanArgs& args, uint4* room)
{
    using Scan = Inner<K, T, false, false, DENSE, LEADS, FULL>;
    constexpr int I = Scan::I;
    __shared__ RowShared<K> shared;
    using Index = std::conditional_t<DENSE, unsigned, i64>;
    const int warp = threadIdx.x / 32, team = static_cast<int>(args.height), width = static_cast<int>(args.width);
    int from = 0;
    Index strip = blockIdx.x;
    if (width > 1) {  // rows of a block; a team is a power of two then
        const int shift = __ffs(team) - 1, mine = warp >> shift;
        from = mine << shift;
        strip = strip * width + mine;
    }
    const bool real = FULL || strip < static_cast<Index>(args.strips);
    const Places place = DENSE ? Places::at_stride(args, 0, real ? strip : 0) : Places::of(args, 0, real ? strip : 0);
    const int n = static_cast<int>(args.n);
    int lead = DENSE && !LEADS ? 0 : lead_of<T>(args, place.dx);
    if (!DENSE && n + lead > team * 32 * I) lead = 0;
    const int first = (warp - from) * 32 * I - lead;
    const Span at = {strip, first, first < 0 ? lead : 0, FULL ? 32 * I : real ? max(min(n - first, 32 * I), 0) : 0, false};
    const Scan scan{args, &shared, from, from + team, nullptr};
    if constexpr (Scan::STRIPED) {
        scan.run_striped(at, place);
        return true;
    } else {
        Passed<K> passed;
        return scan.run(passed, at, place, room + warp * 32 * Scan::U, 0) != kUndone;
    }
}

template <typename K, typename T>
__device__ __noinline__ void row_apart(const ScanArgs& args, uint4* room)
{
    row<K, T, false>(args, room);
}

// Of a kind that is tried first: it has no registers to be one with that of rows of whole vectors.
template <typename K, typename T>
__device__ __noinline__ bool row_with_leads(const ScanArgs& args, uint4* room)
{
    return row<K, T, true, true>(args, room);
}

// A kind and the one that is tried first agree on how threads share the elements.
template <typename K, typename T>
__device__ void row(const ScanArgs& args)
{
    using Scan = Inner<K, T, false, false>;
    constexpr bool FULL = kSlow<TameKind<K, T>, T> && kQuickMemory;
    __shared__ uint4 room[Scan::STRIPED ? 1 : kRowThreads * Scan::U];
    if (kTamed<K> && args.flags & kLeads) {
        if (row_with_leads<TameKind<K, T>, T>(args, room)) return;
    } else if (FULL && args.flags & kFull) {
        if (row<TameKind<K, T>, T, true, false, FULL>(args, room)) return;
    } else if (dense<K>(args) && row<TameKind<K, T>, T, true>(args, room)) {
        return;
    }
    if constexpr (kTamed<K>)
        row_apart<K, T>(args, room);
    else
        row<K, T, false>(args, room);
}

// The tiles of a part of a strip.
template <typename K, typename T>
__device__ void tiles_of(const ScanArgs& args, unsigned item, i64 phase)
{
    using Scan = Inner<K, T, false, true>;
    constexpr int I = Scan::I;
    __shared__ RowShared<K> shared;
    __shared__ Room<Passed<K>, 1> entering;
    __shared__ uint4 room[kRowThreads * Scan::U];
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32, count = static_cast<int>(args.tiles);
    const i64 strip = item / static_cast<unsigned>(args.parts), part = item - strip * args.parts;
    const Walk<K> walk(args, strip, part, 1);
    const Places place = Places::of(args, 0, strip);
    const int capacity = blockDim.x * I;
    const bool aligned = Scan::STRIPED && dense<K>(args);  // of a kind with x they have a ring
    int lead = aligned ? 0 : lead_of<T>(args, place.dx);
    if (args.n + lead > args.parts * count * capacity) lead = 0;
    Passed<K> passed;
    passed.tail = K::far(K::nothing());
    if constexpr (K::HEAD) passed.head = K::empty();
    if (args.parts > 1 && phase == 0 && warp == 0) passed.tail = walk.behind_by_warp();
    const int ahead = K::HEAD && (phase == kHeads || (phase == 0 && args.parts == 1 && count > 1)) ? count : 0;
    const int steps = phase == kHeads ? ahead : ahead + count;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const bool heads = step < ahead;
        const int t = heads ? step : count - 1 - (step - ahead);
        if constexpr (K::HEAD) {
            if (step == ahead) {
                passed.head = K::empty();
                if (args.parts > 1 && warp == 0) passed.head = walk.ahead_by_warp();
            }
        }
        if (threadIdx.x == 0) {
            if constexpr (K::HEAD) {
                if (heads)
                    walk.head_before(t, 0) = passed.head;
                else
                    entering[0].head = args.parts * count > 1 ? K::join(passed.head, walk.head_before(t, 0)) : passed.head;
            }
            entering[0].tail = passed.tail;
        }
        const Span at = span_of<I>(strip, (part * count + t) * capacity + warp * 32 * I - lead, args.n, lead);
        uint4* own = room + warp * 32 * Scan::U;
        if (aligned)
            std::conditional_t<Scan::STRIPED, Inner<K, T, false, true, true>, Scan>{args, &shared, 0, warps, &entering[0]}.run(passed, at, place, own, phase);
        else
            Scan{args, &shared, 0, warps, &entering[0]}.run(passed, at, place, own, heads ? kHeads : phase);
        __syncthreads();
    }
    if constexpr (K::HEAD) {
        if (phase == kHeads && threadIdx.x == 0) walk.head(0) = passed.head;
    }
    if (phase == kTails && threadIdx.x == 0) walk.tail(0) = passed.tail;
}

template <typename K, typename T>
__device__ void tiles(const ScanArgs& args)
{
    if constexpr (kTamed<K>) {
        const int marks = static_cast<int>(args.width);
        if (some_item(args, marks)) do_items(args, marks, [&] { tiles_of<K, T>(args, turn().item, turn().phase); });
    } else {
        tiles_of<K, T>(args, blockIdx.x, args.flags & (kHeads | kTails));
    }
}

// Rows of a warp, from row0 on. Returns false if the kind cannot do them.
template <typename K, typename T, bool DENSE>
__device__ bool rows(const ScanArgs& args, uint4* room, i64 row0, i64 width)
{
    using Scan = Inner<K, T, true, false, DENSE>;
    const int count = static_cast<int>(max(min(width, args.strips - row0), i64(0)) * args.n);
    if (count == 0) return true;
    if (DENSE && count % Scan::V) return false;  // the last rows
    const Places place = DENSE ? Places::at_stride(args, 0, row0) : Places::of(args, 0, row0);
    int lead = DENSE ? 0 : lead_of<T>(args, place.dx);
    if (count + lead > 32 * Scan::I) lead = 0;
    const Span at = {row0, -lead, lead, count + lead, true};
    Passed<K> passed;
    return Scan{args, nullptr, 0, 0, nullptr}.run(passed, at, place, room, 0) != kUndone;
}

// The first row of the warp.
__device__ inline i64 own_rows(const ScanArgs& args)
{
    return (static_cast<i64>(blockIdx.x) * (kRowsThreads / 32) + threadIdx.x / 32) * args.width;
}

// A kind with half as many elements does them in parts.
template <typename K, typename T>
__device__ __noinline__ void rows_apart(const ScanArgs& args, uint4* room)
{
    if constexpr (kRowsVectors<K, T> == 4) {
        rows<K, T, false>(args, room, own_rows(args), args.width);
    } else {
        const int n = static_cast<int>(args.n), width = static_cast<int>(args.width), each = max(32 * Inner<K, T, true, false>::I / n, 1);
#pragma unroll 1
        for (int k = 0; k < width; k += each) rows<K, T, false>(args, room, own_rows(args) + k, min(each, width - k));
    }
}

template <typename K, typename T>
__device__ void rows(const ScanArgs& args)
{
    constexpr int U = kRowsVectors<TameKind<K, T>, T>;  // or half of them: all have their room where it is
    __shared__ uint4 rooms[kRowsThreads * U];
    uint4* room = rooms + threadIdx.x / 32 * 32 * U;
    if (dense<K>(args) && rows<TameKind<K, T>, T, true>(args, room, own_rows(args), args.width)) return;
    if constexpr (kTamed<K>)
        rows_apart<K, T>(args, room);
    else
        rows<K, T, false>(args, room, own_rows(args), args.width);
}
