// The states of a split scan in global memory. A segment (a row, or a panel of columns) of more
// than one tile is walked forward for prefixes and backward for suffixes. If there are too few
// segments to fill the device, each is divided into splits, in up to three launches: upsweep of
// prefixes, upsweep of suffixes, and a downsweep in which each CTA combines the states of the other
// splits. No CTA waits for another, except in a fallback pass, which runs these phases in one
// cooperative launch (fallback.cuh). The order of all combines follows from the shape and the
// number of splits.
#pragma once

#include "scan/state/prefix_suffix.cuh"

// Stores the rejections of a split. With several splits, the upsweeps clear the flag of the segment
// and the downsweep adds to it. Upsweeps also reset the CTA count of grid_sync for the fallback
// pass.
__device__ inline void store_rejections(const ScanArgs& args, i64 segment, i64 phase, unsigned rejections)
{
    if (segment == 0 && phase != kDownsweep) args.reject_flags[args.segments] = 0;
    if (phase != kDownsweep || args.splits == 1)
        args.reject_flags[segment] = phase == kDownsweep ? rejections : 0;
    else if (rejections)
        atomicOr(&args.reject_flags[segment], static_cast<int>(rejections));
}

template <typename K>
struct SplitState {
    using Prefix = typename K::Prefix;
    using Carry = typename K::Carry;
    static constexpr int IN_FLIGHT = K::LONG_COMBINE
                                         ? 4
                                         : 8;  // loads of states in flight; fewer where combining takes registers

    // [segment, split, column]: prefix of the split; of a cooperative row the prefix before it.
    Prefix* prefixes;
    Prefix* before;   // [tile, column] of this split: prefix within the split, before the tile
    Carry* suffixes;  // [segment, split, column]: suffix of the split
    int columns, splits;
    i64 segment, split;

    __device__ SplitState(const ScanArgs& args, i64 segment, i64 split, int columns)
        : columns(columns), splits(static_cast<int>(args.splits)), segment(segment), split(split)
    {
        const i64 all = args.segments * args.splits * columns, prefix_bytes = K::NEEDS_PREFIX ? sizeof(Prefix) : 0;
        const auto aligned_size = [](i64 bytes) { return (bytes + 15) / 16 * 16; };
        char* states = args.states + args.state_offset;
        prefixes = reinterpret_cast<Prefix*>(states);
        before = reinterpret_cast<Prefix*>(states + aligned_size(all * prefix_bytes)) +
                 (segment * splits + split) * args.tiles_per_split * columns;
        suffixes = reinterpret_cast<Carry*>(
            states + aligned_size(all * prefix_bytes) + aligned_size(all * args.tiles_per_split * prefix_bytes));
    }

    __device__ Prefix& prefix(int column) const { return prefixes[(segment * splits + split) * columns + column]; }
    __device__ Carry& suffix(int column) const { return suffixes[(segment * splits + split) * columns + column]; }
    __device__ Prefix& prefix_before(int tile, int column) const
    {
        return before[static_cast<i64>(tile) * columns + column];
    }

    // The combined prefixes of the splits before this one.
    __device__ Prefix prefix_before_split(int column) const
    {
        Prefix sum = K::Prefix::identity();
#pragma unroll (IN_FLIGHT)
        for (i64 i = 0; i < split; ++i) sum = K::combine(sum, prefixes[(segment * splits + i) * columns + column]);
        return sum;
    }

    __device__ Carry suffix_after_split(int column) const
    {
        const Carry identity = K::to_carry(K::Suffix::identity());
        Carry sum = identity;
#pragma unroll 1
        for (i64 i = splits - 1; i > split; i -= IN_FLIGHT) {
            Carry next[IN_FLIGHT];
#pragma unroll
            for (int k = 0; k < IN_FLIGHT; ++k)
                next[k] = i - k > split ? suffixes[(segment * splits + i - k) * columns + column] : identity;
#pragma unroll
            for (int k = 0; k < IN_FLIGHT; ++k) sum = K::combine(next[k], sum);
        }
        return sum;
    }

    // prefix_before_split and suffix_after_split of a single column, computed by a warp: each lane
    // combines adjacent splits, then the lanes are combined.
    __device__ Prefix prefix_before_split_by_warp() const
    {
        const int lane = threadIdx.x % 32, per_lane = (splits + 31) / 32;
        Prefix sum = K::Prefix::identity();
        for (i64 i = lane * per_lane; i < min(split, static_cast<i64>(lane + 1) * per_lane); ++i)
            sum = K::combine(sum, prefixes[segment * splits + i]);
        return from_lane(inclusive_prefix<K>(sum, lane), 31);
    }

    __device__ Carry suffix_after_split_by_warp() const
    {
        const int lane = threadIdx.x % 32, per_lane = (splits + 31) / 32;
        Carry sum = K::to_carry(K::Suffix::identity());
        for (i64 i = min(static_cast<i64>(lane + 1) * per_lane, static_cast<i64>(splits)) - 1;
             i >= max(split + 1, static_cast<i64>(lane) * per_lane); --i)
            sum = K::combine(suffixes[segment * splits + i], sum);
#pragma unroll (K::LONG_COMBINE ? 1 : 5)
        for (int d = 1; d < 32; d *= 2) {
            const Carry right = shuffle_down(sum, d);
            if (lane + d < 32) sum = K::combine(sum, right);
        }
        return from_lane(sum, 0);
    }
};
