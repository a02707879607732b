// scan/row/: the kernels that scan along the dim that is adjacent in memory, a file for each
// strategy.
//
// This file: the three strategies that load tiles straight to registers.
//
//     row_resident  `warps_per_row` warps hold a row
//     row_tiled     a CTA walks the tiles of a row, or of a split of one
//     row_packed    a warp holds `rows_per_warp` whole rows, laid end to end (segmented warp scan)
#pragma once

#include "scan/state/fallback.cuh"
#include "scan/tile/row_tile.cuh"

// The part of a tile, or of a row, that a warp owns; its element 0 is at position `first`.
template <int I>
__device__ Span span_of(i64 row, i64 first, i64 n, int misalignment)
{
    return {
        row, first, first < 0 ? misalignment : 0,
        static_cast<int>(max(min(n - first, static_cast<i64>(32 * I)), i64(0))), false};
}

// Whether the operands satisfy kVectorized, as the host says. Indices never do.
template <typename K>
__device__ bool is_vectorized(const ScanArgs& args)
{
    return !__is_same(typename K::Value, i64) && args.flags & kVectorized;
}

// Runs the rows of this CTA. Returns false, and has stored nothing, if the fast path rejects one.
template <typename K, typename T, bool VECTORIZED, bool PARTIAL_ENDS = false>
__device__ bool row_resident(const ScanArgs& args, uint4* smem)
{
    using Scan = RowTile<K, T, false, false, VECTORIZED, PARTIAL_ENDS>;
    constexpr int I = Scan::I;
    __shared__ RowShared<K> shared;
    using Index = std::conditional_t<VECTORIZED, unsigned, i64>;
    const int warp = threadIdx.x / 32, warps_per_row = static_cast<int>(args.warps_per_row),
              rows_per_cta = static_cast<int>(args.rows_per_cta);
    int first_warp = 0;
    Index row_index = blockIdx.x;
    if (rows_per_cta > 1) {  // warps_per_row is a power of two
        const int shift = __ffs(warps_per_row) - 1, row_in_block = warp >> shift;
        first_warp = row_in_block << shift;
        row_index = row_index * rows_per_cta + row_in_block;
    }
    const bool row_exists = row_index < static_cast<Index>(args.segments);
    const Offsets offsets = VECTORIZED ? Offsets::of_single_dim(args, 0, row_exists ? row_index : 0)
                                       : Offsets::of(args, 0, row_exists ? row_index : 0);
    const int n = static_cast<int>(args.n);
    int misalignment = VECTORIZED && !PARTIAL_ENDS ? 0 : alignment_offset<T>(args, offsets.dx);
    // If the warps have no room for the gap before the row, it begins at element 0.
    if (!VECTORIZED && n + misalignment > warps_per_row * 32 * I) misalignment = 0;
    const int first = (warp - first_warp) * 32 * I - misalignment;
    const Span span = {
        row_index, first, first < 0 ? misalignment : 0, row_exists ? max(min(n - first, 32 * I), 0) : 0, false};
    const Scan scan{args, &shared, first_warp, first_warp + warps_per_row, nullptr};
    if constexpr (Scan::STRIPED) {
        scan.run_striped(span, offsets);
        return true;
    } else {
        RunningCarry<K> running;
        return scan.run(running, span, offsets, smem + warp * 32 * Scan::U, kDownsweep) != kRejected;
    }
}

// The retry by the general kind, in the same launch.
template <typename K, typename T>
__device__ __noinline__ void row_retry(const ScanArgs& args, uint4* smem)
{
    row_resident<K, T, false>(args, smem);
}

// The fast path for misaligned rows. Not inlined: together with vectorized rows it would take more
// registers.
template <typename K, typename T>
__device__ __noinline__ bool row_misaligned(const ScanArgs& args, uint4* smem)
{
    return row_resident<K, T, true, true>(args, smem);
}

// The general kind and its fast path assign the same elements to a thread, so they share a launch.
template <typename K, typename T>
__device__ void row_resident(const ScanArgs& args)
{
    using Scan = RowTile<K, T, false, false>;
    __shared__ uint4 smem[Scan::STRIPED ? 1 : kRowResidentThreads * Scan::U];
    if (kHasFastPath<K> && args.flags & kMisaligned) {
        if (row_misaligned<FastPath<K, T>, T>(args, smem)) return;
    } else if (is_vectorized<K>(args) && row_resident<FastPath<K, T>, T, true>(args, smem)) {
        return;
    }
    if constexpr (kHasFastPath<K>)
        row_retry<K, T>(args, smem);
    else
        row_resident<K, T, false>(args, smem);
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
    const bool aligned = Scan::READS_DY_ALONE && is_vectorized<K>(args);
    int misalignment = aligned ? 0 : alignment_offset<T>(args, offsets.dx);
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
            row_index, (split * count + t) * capacity + warp * 32 * I - misalignment, args.n, misalignment);
        uint4* own = smem + warp * 32 * Scan::U;
        if (aligned)
            std::conditional_t<Scan::READS_DY_ALONE, RowTile<K, T, false, true, true>, Scan>{
                args, &shared, 0, warps, &carry_in[0]}
                .run(running, span, offsets, own, phase);
        else
            Scan{args, &shared, 0, warps, &carry_in[0]}.run(
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

// Runs the rows of a warp, from row0 on. Returns false, and has stored nothing, if the fast path
// rejects them.
template <typename K, typename T, bool VECTORIZED>
__device__ bool row_packed(const ScanArgs& args, uint4* smem, i64 row0, i64 rows)
{
    using Scan = RowTile<K, T, true, false, VECTORIZED>;
    const int count = static_cast<int>(max(min(rows, args.segments - row0), i64(0)) * args.n);
    if (count == 0) return true;
    if (VECTORIZED && count % Scan::V) return false;  // the last rows may not fill whole vectors
    const Offsets offsets = VECTORIZED ? Offsets::of_single_dim(args, 0, row0) : Offsets::of(args, 0, row0);
    int misalignment = VECTORIZED ? 0 : alignment_offset<T>(args, offsets.dx);
    if (count + misalignment > 32 * Scan::I) misalignment = 0;
    const Span span = {row0, -misalignment, misalignment, count + misalignment, true};
    RunningCarry<K> running;
    return Scan{args, nullptr, 0, 0, nullptr}.run(running, span, offsets, smem, kDownsweep) != kRejected;
}

// The first row of the warp.
__device__ inline i64 first_row_of_warp(const ScanArgs& args)
{
    return (static_cast<i64>(blockIdx.x) * (kRowPackedThreads / 32) + threadIdx.x / 32) * args.rows_per_warp;
}

// The retry by the general kind. If it has fewer elements per thread, it takes the rows in
// portions.
template <typename K, typename T>
__device__ __noinline__ void rows_retry(const ScanArgs& args, uint4* smem)
{
    if constexpr (kPackedVectors<K, T> == 4) {
        row_packed<K, T, false>(args, smem, first_row_of_warp(args), args.rows_per_warp);
    } else {
        const int n = static_cast<int>(args.n), rows = static_cast<int>(args.rows_per_warp),
                  each = max(32 * RowTile<K, T, true, false>::I / n, 1);
#pragma unroll 1
        for (int k = 0; k < rows; k += each)
            row_packed<K, T, false>(args, smem, first_row_of_warp(args) + k, min(each, rows - k));
    }
}

template <typename K, typename T>
__device__ void row_packed(const ScanArgs& args)
{
    // The general kind has the same number of vectors or half as many, in the same shared memory.
    constexpr int U = kPackedVectors<FastPath<K, T>, T>;
    __shared__ uint4 block_smem[kRowPackedThreads * U];
    uint4* smem = block_smem + threadIdx.x / 32 * 32 * U;
    if (is_vectorized<K>(args) &&
        row_packed<FastPath<K, T>, T, true>(args, smem, first_row_of_warp(args), args.rows_per_warp))
        return;
    if constexpr (kHasFastPath<K>)
        rows_retry<K, T>(args, smem);
    else
        row_packed<K, T, false>(args, smem, first_row_of_warp(args), args.rows_per_warp);
}
