// scan/row/: the kernels that scan along the dim that is adjacent in memory, a file for each
// strategy.
//
// This file: row_tiled, for any layout. A CTA walks the tiles of a row, or of a split of one.
#pragma once

#include "scan/state/carry.cuh"
#include "scan/state/fallback.cuh"
#include "scan/tile/row_tile.cuh"

// The part of a tile that a warp owns; its element 0 is at position `first`.
template <int I>
__device__ Span span_of(i64 row, i64 first, i64 n, int misalignment, bool is_chunk)
{
    return {
        row, first, first < 0 ? misalignment : 0,
        static_cast<int>(max(min(n - first, static_cast<i64>(32 * I)), i64(0))), false, is_chunk};
}

// Walks the tiles of a split of a row.
template <typename K, typename T>
__device__ void walk_row_tiles(const ScanArgs& args, unsigned item, i64 phase)
{
    using Scan = RowTile<K, T, false, true>;
    constexpr int I = Scan::I;
    __shared__ RowShared<K> shared;
    __shared__ Uninitialized<RunningCarry<K>, 1> carry_in;
    __shared__ uint4 smem[kRowResidentThreads * Scan::U];
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32, count = static_cast<int>(args.tiles_per_split);
    const i64 row_index = item / static_cast<unsigned>(args.splits), split = item - row_index * args.splits;
    const SplitState<K> split_state(args, row_index, split, 1);
    const Offsets offsets = Offsets::of(args, 0, row_index);
    const int capacity = blockDim.x * I;
    // Kinds that read numbers use row_pipelined instead.
    const bool aligned = Scan::READS_Y_ALONE && is_vectorized<K>(args);
    int misalignment = aligned ? 0 : alignment_offset<T>(args, offsets.outputs[kResult]);
    // With carries, elements ahead of the row must not count as records.
    const bool begins_at_row = K::HAS_CARRIES && (K::STORES_INDICES || K::SEGMENTED_SUM);
    if (begins_at_row || args.n + misalignment > args.splits * count * capacity) misalignment = 0;
    RunningCarry<K> running;
    running.suffix = K::to_carry(K::Suffix::identity());
    if constexpr (K::NEEDS_PREFIX) running.prefix = K::Prefix::identity();
    if (args.splits > 1 && phase == kDownsweep && warp == 0) running.suffix = split_state.suffix_after_split_by_warp();
    if constexpr (K::HAS_CARRIES) {
        if (args.splits == 1 || phase == kDownsweep)
            running.suffix = K::combine(running.suffix, suffix_of_row<K>(args, row_index));
    }
    const int prefix_steps =
        K::NEEDS_PREFIX && (phase == kUpsweepPrefix || (phase == kDownsweep && args.splits == 1 && count > 1))
            ? count
            : 0;
    const bool summary = K::HAS_CARRIES && args.flags & kSummary;
    const int steps = summary ? 0 : phase == kUpsweepPrefix ? prefix_steps : prefix_steps + count;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const bool prefix_only = step < prefix_steps;
        const int t = prefix_only ? step : count - 1 - (step - prefix_steps);
        if constexpr (K::NEEDS_PREFIX) {
            if (step == prefix_steps) {
                running.prefix = K::Prefix::identity();
                if (args.splits > 1 && warp == 0) running.prefix = split_state.prefix_before_split_by_warp();
                if constexpr (K::HAS_CARRIES)
                    running.prefix = K::combine(prefix_of_row<K>(args, row_index), running.prefix);
            }
        }
        if (threadIdx.x == 0) {
            if constexpr (K::NEEDS_PREFIX) {
                if (prefix_only)
                    split_state.prefix_before(t, 0) = running.prefix;
                else
                    carry_in[0].prefix = args.splits * count > 1
                                             ? K::combine(running.prefix, split_state.prefix_before(t, 0))
                                             : running.prefix;
            }
            carry_in[0].suffix = running.suffix;
        }
        const Span span = span_of<I>(
            row_index, (split * count + t) * capacity + warp * 32 * I - misalignment, args.n, misalignment,
            K::HAS_CARRIES);
        uint4* own = smem + warp * 32 * Scan::U;
        if (aligned)
            std::conditional_t<Scan::READS_Y_ALONE, RowTile<K, T, false, true, true>, Scan>{
                args, {&shared, 0, warps}, &carry_in[0]}
                .run(running, span, offsets, own, phase);
        else
            Scan{args, {&shared, 0, warps}, &carry_in[0]}.run(
                running, span, offsets, own, prefix_only ? kUpsweepPrefix : phase);
        __syncthreads();
    }
    if constexpr (K::NEEDS_PREFIX) {
        if (phase == kUpsweepPrefix && threadIdx.x == 0) split_state.prefix(0) = running.prefix;
    }
    if constexpr (K::HAS_CARRIES) {
        if (threadIdx.x > 0) return;
        if (summary) running.suffix = K::combine(split_state.suffix(0), running.suffix);
        if (phase == kDownsweep ? split == 0 : phase == kUpsweepSuffix && args.splits == 1) {
            store_suffix_of_row<K>(args, row_index, running.suffix);
            return;
        }
    }
    if (phase == kUpsweepSuffix && threadIdx.x == 0) split_state.suffix(0) = running.suffix;
}

template <typename K, typename T>
__device__ void row_tiled(const ScanArgs& args)
{
    if constexpr (kHasFastPath<K>) {
        const int flags_per_row = static_cast<int>(args.flags_per_row);
        if (has_work_item(args, flags_per_row))
            for_each_work_item(
                args, flags_per_row, [&] { walk_row_tiles<K, T>(args, work_item().item, work_item().phase); });
    } else {
        walk_row_tiles<K, T>(args, blockIdx.x, args.flags & (kUpsweepPrefix | kUpsweepSuffix));
    }
}
