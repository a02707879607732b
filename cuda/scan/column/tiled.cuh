// scan/column/: the kernels that scan along a dim while another one is adjacent in memory, a file
// for each strategy.
//
// This file: column_tiled, for any layout. A CTA walks the tiles of a panel of columns, or of a
// split of one.
#pragma once

#include "scan/state/carry.cuh"
#include "scan/state/fallback.cuh"
#include "scan/tile/column_tile.cuh"

// Whether panels of one tile have code of their own. Indices and carries need not be fast.
template <typename K>
constexpr bool kHasSingleTilePath = !__is_same(typename K::Value, i64) && !K::HAS_CARRIES;

// Runs panels of one tile. Returns false, and has stored nothing, if the fast path rejects those of
// this CTA.
template <typename K, typename T>
__device__ bool run_single_tile(const ScanArgs& args)
{
    extern __shared__ __align__(128) uint4 buffer[];
    const ColumnTile<K, T> scan(args, buffer, false);
    return scan.template run<true>(0, 0, kDownsweep) != kRejected;
}

// Runs a split of a panel: walks its tiles forward for prefixes, unless an upsweep has found them,
// then backward. Rejections go to the flag of the panel.
template <typename K, typename T>
__device__ void walk_panel_tiles(const ScanArgs& args)
{
    extern __shared__ __align__(128) uint4 buffer[];
    const ColumnTile<K, T> scan(args, buffer, K::HAS_CARRIES);
    auto& carry_in = scan.carry_in;
    const int phase = scan.phase();
    const i64 first = args.splits == 1 ? 0 : (scan.item() - scan.segment * args.splits) * args.tiles_per_split;
    const int c = threadIdx.x, d = scan.suffix_column(), count = static_cast<int>(args.tiles_per_split);
    const int prefix_steps =
        K::NEEDS_PREFIX && (phase == kUpsweepPrefix || (phase == kDownsweep && args.splits == 1 && count > 1))
            ? count
            : 0;
    const bool summary = K::HAS_CARRIES && args.flags & kSummary;
    const int steps = summary ? 0 : phase == kUpsweepPrefix ? prefix_steps : prefix_steps + count;
    if constexpr (K::NEEDS_PREFIX) {
        if (scan.owns_column()) carry_in.prefixes[c] = K::Prefix::identity();
    }
    if (scan.owns_suffix_column())
        carry_in.suffixes[d] = args.splits == 1 || phase != kDownsweep ? K::to_carry(K::Suffix::identity())
                                                              : scan.split_state().suffix_after_split(d);
    if constexpr (K::HAS_CARRIES) {
        if (d >= 0 && d <= scan.last_column() && (args.splits == 1 || phase == kDownsweep))
            carry_in.suffixes[d] = K::combine(carry_in.suffixes[d], suffix_of_row<K>(args, scan.row_of_column(d)));
    }
    unsigned rejections = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const bool prefix_only = step < prefix_steps;
        const int t = prefix_only ? step : count - 1 - (step - prefix_steps);
        if constexpr (K::NEEDS_PREFIX) {
            if (prefix_only && scan.owns_column()) scan.split_state().prefix_before(t, c) = carry_in.prefixes[c];
            if (step == prefix_steps && scan.owns_column())
                carry_in.prefixes[c] = args.splits > 1 ? scan.split_state().prefix_before_split(c)
                                                       : K::Prefix::identity();
            if constexpr (K::HAS_CARRIES) {
                if (step == prefix_steps && c <= scan.last_column())
                    carry_in.prefixes[c] = K::combine(
                        prefix_of_row<K>(args, scan.row_of_column(c)), carry_in.prefixes[c]);
            }
        }
        rejections |= scan.template run<false>(first + t, t, prefix_only ? kUpsweepPrefix : phase);
        if (count > 1) __syncthreads();
    }
    if constexpr (K::NEEDS_PREFIX) {
        if (phase == kUpsweepPrefix && scan.owns_column()) scan.split_state().prefix(c) = carry_in.prefixes[c];
    }
    if constexpr (K::HAS_CARRIES) {
        if (d > scan.last_column()) return;
        if (summary) carry_in.suffixes[d] = K::combine(scan.split_state().suffix(d), carry_in.suffixes[d]);
        if (phase == kDownsweep ? first == 0 : phase == kUpsweepSuffix && args.splits == 1) {
            store_suffix_of_row<K>(args, scan.row_of_column(d), carry_in.suffixes[d]);
            return;
        }
    }
    if (phase == kUpsweepSuffix && scan.owns_suffix_column()) scan.split_state().suffix(d) = carry_in.suffixes[d];
    if constexpr (K::IS_FAST) {
        rejections = block_rejections(rejections);
        if (c == 0) store_rejections(args, scan.segment, phase, rejections);
    }
}

template <typename K, typename T>
__device__ __noinline__ void column_tiles_fallback(const ScanArgs& args)
{
    for_each_work_item(args, 1, [&] { walk_panel_tiles<K, T>(args); });
}

template <typename K, typename T>
__device__ void column_tiled(const ScanArgs& args)
{
    using First = FastPath<K, T>;
    const bool fallback = args.flags & kFallback,
               one = kHasSingleTilePath<K> && args.tiles_per_split * args.splits == 1 && !fallback;
    if (!one && !fallback) return walk_panel_tiles<First, T>(args);
    if constexpr (kHasSingleTilePath<K>) {
        if (one && run_single_tile<First, T>(args)) return;
    }
    if constexpr (kHasFastPath<K>) {
        if (has_work_item(args, 1)) column_tiles_fallback<K, T>(args);
    }
}
