// The launch arguments of scans, and the offsets of rows and elements in memory that follow from
// them.
//
// Terms of all files of scan/:
//
//     row       the elements of one scan; along another dim than the contiguous one also a column
//     panel     adjacent columns that a CTA, or part of a warp, scans together
//     segment   a row, or a panel
//     tile      the part of a segment that is in the registers of a CTA (or warp) at one time
//     split     the adjacent tiles of a segment that one CTA walks, if several CTAs share it
//     slice     the part of a row or panel that a CTA of row_cluster or column_cluster keeps
//     carry-in  the prefix and the suffix that enter a tile from the tiles before and after it
//     record    an element that begins a row or wins over all before it (cummax, cummin)
//     index     of a position, the position of its record: what cummax and cummin return
//     base      the x from which the exponentials of a row are taken (fast path of logcumsumexp)
#pragma once

#include "common/dtype.cuh"
#include "scan/tuning.gen.cuh"

struct Strided {
    char* data;
    // [elements]: offset of the first element in scan order; stride along the scanned dim; strides
    // of the other dims.
    i64 first, step, stride[7];
};

struct ScanArgs {
    i64 n, dims, extent[7];  // extent of the scanned dim; number of other dims and their extents, fastest first
    // Tiles of a split; splits of a segment (row_cluster, column_cluster: its CTAs); segments.
    i64 tiles_per_split, splits, segments;
    // The launch configuration; a field is 0 for kernels that its comment does not name.
    i64 rows_per_warp;                 // row_packed
    i64 rows_per_cta, warps_per_row;   // row_resident
    i64 flags_per_row;                 // row_tiled as a fallback pass: reject flags of a row
    i64 threads_across, threads_down;  // column_tiled: threads of a CTA along a row of a panel and along a column
    i64 stages;                        // row_pipelined, column_pipelined: tiles in the circular buffer
    i64 status_offset;                 // row_pipelined, row_cluster: [bytes] from `states` to the tile-status words
    // Bits of tuning.gen.cuh; [bytes] from `states` to the states of splits and tiles, and to the
    // record flags (a bit for each element, tile by tile).
    i64 flags, state_offset, record_offset;
    char* states;
    // Indices: [0] whether any row is wrong, [1 + row] whether this row is (no scan produces its
    // indices). Fast paths: rejections, [segment] or, of row_cluster, [segment, slice]; after the
    // last one, the CTA count of grid_sync.
    int* reject_flags;
    Strided inputs[3], outputs[2];  // without data: the run has no such operand
};

// Inputs and outputs by number. kScanned has the elements that a scan combines: dy of a gradient,
// the input of a forward scan. kSaved has x, or the indices of the forward, from which a gradient
// finds its coefficients. kResult is dx, or the result of a forward scan. kIndices are those that
// forward cummax and cummin store.
constexpr int kScanned = 0, kSaved = 1;
constexpr int kResult = 0, kIndices = 1;

// Element offsets, in each operand, of the row (or row of panels) with linear index `index` over
// the dims from..dims-1, dim `from` fastest.
struct Offsets {
    i64 inputs[3], outputs[2];

    // Calls f(operand, its offset) for each operand.
    template <typename F>
    __device__ void for_each(const ScanArgs& args, const F& f)
    {
        f(args.inputs[0], inputs[0]);
        f(args.inputs[1], inputs[1]);
        f(args.inputs[2], inputs[2]);
        f(args.outputs[0], outputs[0]);
        f(args.outputs[1], outputs[1]);
    }

    // Precondition: at most one such dim.
    template <typename Index>
    __device__ static Offsets of_single_dim(const ScanArgs& args, int from, Index index)
    {
        Offsets offsets;
        offsets.for_each(args, [&](const Strided& operand, i64& offset) {
            offset = operand.first + static_cast<i64>(index) * operand.stride[from];
        });
        return offsets;
    }

    __device__ static Offsets of(const ScanArgs& args, int from, i64 index)
    {
        if (args.dims <= from + 1) return of_single_dim(args, from, index);
        Offsets offsets;
        offsets.for_each(args, [](const Strided& operand, i64& offset) { offset = operand.first; });
#pragma unroll 1
        for (int d = from; d < args.dims; ++d) {
            const i64 extent = args.extent[d];
            const bool small = index >> 31 == 0 && extent >> 31 == 0;  // a 32-bit division suffices
            const i64 rest = small ? static_cast<unsigned>(index) / static_cast<unsigned>(extent) : index / extent;
            const i64 k = index - rest * extent;
            offsets.for_each(args, [&](const Strided& operand, i64& offset) { offset += k * operand.stride[d]; });
            index = rest;
        }
        return offsets;
    }
};

__device__ inline i64 offset_of(const ScanArgs& args, const Strided& operand, i64 index)
{
    i64 offset = operand.first;
#pragma unroll 1
    for (int d = 0; d < args.dims; ++d) {
        offset += index % args.extent[d] * operand.stride[d];
        index /= args.extent[d];
    }
    return offset;
}

// Misalignment of a row of the result that begins at `offset`: how many elements of the
// `unit`-byte block that holds its first element come before that element in scan order.
template <typename T>
__device__ int alignment_offset(const ScanArgs& args, i64 offset, int unit = 16)
{
    const Strided& result = args.outputs[kResult];
    const i64 address = reinterpret_cast<i64>(result.data) / static_cast<i64>(sizeof(T)) + offset,
              last = unit / static_cast<int>(sizeof(T)) - 1;
    return static_cast<int>((result.step < 0 ? last - address : address) & last);
}
