// Strips (rows, or some columns) of more than one tile. A block walks the tiles of a part of a strip, all of it where there are strips
// enough to fill the device: forward for the heads, and back for the tails. Where strips are cut into several parts, one launch finds
// the heads of parts, one their tails, and in a last one each block joins those of the others: nobody waits for another block, and the
// order of all joins follows from the shape and the number of parts.
#pragma once

#include "scan/state/prefix_suffix.cuh"

// Tells the faults of a part of a strip, where nobody told any before in this phase if there are several. Blocks that do strips again have
// not met.
__device__ inline void tell_faults(const ScanArgs& args, i64 strip, i64 phase, unsigned faults)
{
    if (strip == 0 && phase != 0) args.bad[args.strips] = 0;
    if (phase != 0 || args.parts == 1)
        args.bad[strip] = phase == 0 ? faults : 0;
    else if (faults)
        atomicOr(&args.bad[strip], static_cast<int>(faults));
}

// States of parts that are on their way at once, as each takes long.
template <typename S>
constexpr int kAtOnce = kLong<S> ? 4 : 8;

template <typename K>
struct Walk {
    using Head = typename K::Head;
    using Far = typename K::Far;

    Head* heads;   // [strip, part, column]
    Head* before;  // [strip, part, tile, column]: what precedes a tile in its part
    Far* tails;    // [strip, part, column]
    int columns, parts;
    i64 strip, part;

    __device__ Walk(const ScanArgs& args, i64 strip, i64 part, int columns)
        : columns(columns), parts(static_cast<int>(args.parts)), strip(strip), part(part)
    {
        const i64 all = args.strips * args.parts * columns, room = K::HEAD ? sizeof(Head) : 0;
        const auto next = [](i64 bytes) { return (bytes + 15) / 16 * 16; };
        char* states = args.states + args.skip;
        heads = reinterpret_cast<Head*>(states);
        before = reinterpret_cast<Head*>(states + next(all * room)) + (strip * parts + part) * args.tiles * columns;
        tails = reinterpret_cast<Far*>(states + next(all * room) + next(all * args.tiles * room));
    }

    __device__ Head& head(int column) const { return heads[(strip * parts + part) * columns + column]; }
    __device__ Far& tail(int column) const { return tails[(strip * parts + part) * columns + column]; }
    __device__ Head& head_before(int tile, int column) const { return before[static_cast<i64>(tile) * columns + column]; }

    // What the parts ahead leave to this one.
    __device__ Head ahead(int column) const
    {
        Head sum = K::empty();
#pragma unroll (kAtOnce<Head>)
        for (i64 i = 0; i < part; ++i) sum = K::join(sum, heads[(strip * parts + i) * columns + column]);
        return sum;
    }

    __device__ Far behind(int column) const
    {
        const Far nothing = K::far(K::nothing());
        Far sum = nothing;
#pragma unroll 1
        for (i64 i = parts - 1; i > part; i -= kAtOnce<Far>) {
            Far next[kAtOnce<Far>];
#pragma unroll
            for (int k = 0; k < kAtOnce<Far>; ++k) next[k] = i - k > part ? tails[(strip * parts + i - k) * columns + column] : nothing;
#pragma unroll
            for (int k = 0; k < kAtOnce<Far>; ++k) sum = K::join(next[k], sum);
        }
        return sum;
    }

    // The same for one column, by a warp: each lane joins adjacent parts, then lanes are joined.
    __device__ Head ahead_by_warp() const
    {
        const int lane = threadIdx.x % 32, each = (parts + 31) / 32;
        Head sum = K::empty();
        for (i64 i = lane * each; i < min(part, static_cast<i64>(lane + 1) * each); ++i) sum = K::join(sum, heads[strip * parts + i]);
        return from_lane(heads_up_to<K>(sum, lane), 31);
    }

    __device__ Far behind_by_warp() const
    {
        const int lane = threadIdx.x % 32, each = (parts + 31) / 32;
        Far sum = K::far(K::nothing());
        for (i64 i = min(static_cast<i64>(lane + 1) * each, static_cast<i64>(parts)) - 1; i >= max(part + 1, static_cast<i64>(lane) * each); --i)
            sum = K::join(tails[strip * parts + i], sum);
#pragma unroll (kLong<Far> ? 1 : 5)
        for (int d = 1; d < 32; d *= 2) {
            const Far right = from_above(sum, d);
            if (lane + d < 32) sum = K::join(sum, right);
        }
        return from_lane(sum, 0);
    }
};
