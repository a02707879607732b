// row_resident: `warps_per_row` warps hold a row in registers. A CTA has one row or several.
#pragma once

#include "scan/tile/row_tile.cuh"

// Runs the rows of this CTA. Returns false, and has stored nothing, if the fast path rejects one.
template <typename K, typename T, bool VECTORIZED, bool PARTIAL_ENDS = false>
__device__ bool resident_row(const ScanArgs& args, uint4* smem)
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
    int misalignment = VECTORIZED && !PARTIAL_ENDS ? 0 : alignment_offset<T>(args, offsets.outputs[kResult]);
    // If the warps have no room for the gap before the row, it begins at element 0.
    if (!VECTORIZED && n + misalignment > warps_per_row * 32 * I) misalignment = 0;
    const int first = (warp - first_warp) * 32 * I - misalignment;
    // `first` is the position in the row of the warp's element 0. It is negative where the row
    // begins inside the warp's first vector.
    const Span span = {
        row_index, first, first < 0 ? misalignment : 0, row_exists ? max(min(n - first, 32 * I), 0) : 0, false};
    const Scan scan{args, {&shared, first_warp, first_warp + warps_per_row}, nullptr};
    if constexpr (Scan::STRIPED) {
        scan.run_striped(span, offsets);
        return true;
    } else {
        RunningCarry<K> running;
        return scan.run(running, span, offsets, smem + warp * 32 * Scan::U, kDownsweep) != kRejected;
    }
}

// The general kind, in the same launch, where the fast path rejects a row.
template <typename K, typename T>
__device__ __noinline__ void resident_row_general(const ScanArgs& args, uint4* smem)
{
    resident_row<K, T, false>(args, smem);
}

// The fast path for misaligned rows. Not inlined: together with vectorized rows it would take more
// registers.
template <typename K, typename T>
__device__ __noinline__ bool resident_row_misaligned(const ScanArgs& args, uint4* smem)
{
    return resident_row<K, T, true, true>(args, smem);
}

// The general kind and its fast path assign the same elements to a thread, so they share a launch.
template <typename K, typename T>
__device__ void row_resident(const ScanArgs& args)
{
    using Scan = RowTile<K, T, false, false>;
    constexpr int TRANSPOSED = Scan::U < kTransposedVectors ? Scan::U : kTransposedVectors;
    __shared__ uint4 smem[Scan::STRIPED ? 1 : kRowResidentThreads * TRANSPOSED];
    if (kHasFastPath<K> && args.flags & kMisaligned) {
        if (resident_row_misaligned<FastPath<K, T>, T>(args, smem)) return;
    } else if (is_vectorized<K>(args) && resident_row<FastPath<K, T>, T, true>(args, smem)) {
        return;
    }
    if constexpr (kHasFastPath<K>)
        resident_row_general<K, T>(args, smem);
    else
        resident_row<K, T, false>(args, smem);
}
