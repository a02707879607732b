// row_packed: a warp holds `rows_per_warp` whole rows, laid end to end (segmented warp scan).
#pragma once

#include "scan/tile/row_tile.cuh"

// Runs the rows of a warp, from row0 on. Returns false, and has stored nothing, if the fast path
// rejects them.
template <typename K, typename T, bool VECTORIZED>
__device__ bool packed_rows(const ScanArgs& args, uint4* smem, i64 row0, i64 rows)
{
    using Scan = RowTile<K, T, true, false, VECTORIZED>;
    const int count = static_cast<int>(max(min(rows, args.segments - row0), i64(0)) * args.n);
    if (count == 0) return true;
    if (VECTORIZED && count % Scan::V) return false;  // the last rows may not fill whole vectors
    const Offsets offsets = VECTORIZED ? Offsets::of_single_dim(args, 0, row0) : Offsets::of(args, 0, row0);
    int misalignment = VECTORIZED ? 0 : alignment_offset<T>(args, offsets.outputs[kResult]);
    if (count + misalignment > 32 * Scan::I) misalignment = 0;
    const Span span = {row0, -misalignment, misalignment, count + misalignment, true};
    RunningCarry<K> running;
    return Scan{args, {}, nullptr}.run(running, span, offsets, smem, kDownsweep) != kRejected;
}

// The first row of the warp.
__device__ inline i64 first_row_of_warp(const ScanArgs& args)
{
    return (static_cast<i64>(blockIdx.x) * (kRowPackedThreads / 32) + threadIdx.x / 32) * args.rows_per_warp;
}

// The general kind, in the same launch, where the fast path rejects a row. If it has fewer elements
// per thread, it takes the rows in portions.
template <typename K, typename T>
__device__ __noinline__ void packed_rows_general(const ScanArgs& args, uint4* smem)
{
    if constexpr (kPackedVectors<K, T> == 4) {
        packed_rows<K, T, false>(args, smem, first_row_of_warp(args), args.rows_per_warp);
    } else {
        const int n = static_cast<int>(args.n), rows = static_cast<int>(args.rows_per_warp),
                  each = max(32 * RowTile<K, T, true, false>::I / n, 1);
#pragma unroll 1
        for (int k = 0; k < rows; k += each)
            packed_rows<K, T, false>(args, smem, first_row_of_warp(args) + k, min(each, rows - k));
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
        packed_rows<FastPath<K, T>, T, true>(args, smem, first_row_of_warp(args), args.rows_per_warp))
        return;
    if constexpr (kHasFastPath<K>)
        packed_rows_general<K, T>(args, smem);
    else
        packed_rows<K, T, false>(args, smem, first_row_of_warp(args), args.rows_per_warp);
}
