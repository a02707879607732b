// The launch arguments of scans, and the offsets of rows and elements in memory that follow from
// them.
#pragma once

#include "common/dtype.cuh"

enum : i64 {
    kFirst = 1,           // of equal elements the first one wins (cummax, cummin)
    kMinimum = 2,         // cummin
    kReversed = 4,        // positions run against scan order (matters for indices only)
    kUpsweepPrefix = 8,   // upsweep (prefix): compute the prefixes of splits and nothing else
    kUpsweepSuffix = 16,  // upsweep (suffix): compute the suffixes of splits, given the prefixes
    // Every operand is read in whole aligned 16-byte vectors: one row stride, fewer than 2^32 rows,
    // rows (row_packed: the rows of a warp) of whole vectors; dy may have stride 0.
    kVectorized = 32,
    kFallback = 64,  // fallback pass: only the segments that reject_flags reject
    // With kVectorized, along rows: a row begins and ends anywhere in a 16-byte vector, at the same
    // offset in all operands.
    kMisaligned = 128,
    kLineAligned = 256,  // with kMisaligned: at the same offset of a 128-byte cache line, too
    // row_resident: prefetch rows of later CTAs to L2; for GPUs with more bandwidth per SM than an
    // H100.
    kPrefetchNextRow = 512
};

struct Strided {
    char* data;
    // [elements]: offset of the first element in scan order; stride along the scanned dim; strides
    // of the other dims.
    i64 first, step, stride[7];
};

struct ScanArgs {
    i64 n, dims, extent[7];  // extent of the scanned dim; number of other dims and their extents, fastest first
    i64 tiles_per_split, splits, segments, width, height, flags, state_offset, record_offset;
    // [bytes]: states of splits and tiles from state_offset on, record flags (a bit for each
    // element, tile by tile) from record_offset on.
    char* states;
    // Indices: [0] any row, [1 + row] the row has indices that no scan gives; fast path:
    // rejections, [segment] or [segment, slice], then the CTA count of grid_sync.
    int* reject_flags;
    Strided dy, x, dx;
};

// Element offsets of one point in each operand: `index` counts points of the dims from..dims-1.
struct Places {
    i64 dy, x, dx;

    // Precondition: at most one such dim.
    template <typename Index>
    __device__ static Places at_stride(const ScanArgs& args, int from, Index index)
    {
        const auto of = [&](const Strided& operand) {
            return operand.first + static_cast<i64>(index) * operand.stride[from];
        };
        return {of(args.dy), of(args.x), of(args.dx)};
    }

    __device__ static Places of(const ScanArgs& args, int from, i64 index)
    {
        if (args.dims <= from + 1) return at_stride(args, from, index);
        i64 dy = args.dy.first, x = args.x.first, dx = args.dx.first;
#pragma unroll 1
        for (int d = from; d < args.dims; ++d) {
            const i64 extent = args.extent[d];
            const bool small = index >> 31 == 0 && extent >> 31 == 0;  // a 32-bit division suffices
            const i64 rest = small ? static_cast<unsigned>(index) / static_cast<unsigned>(extent) : index / extent;
            const i64 k = index - rest * extent;
            dy += k * args.dy.stride[d];
            x += k * args.x.stride[d];
            dx += k * args.dx.stride[d];
            index = rest;
        }
        return {dy, x, dx};
    }
};

__device__ inline i64 place_of(const ScanArgs& args, const Strided& operand, i64 index)
{
    i64 place = operand.first;
#pragma unroll 1
    for (int d = 0; d < args.dims; ++d) {
        place += index % args.extent[d] * operand.stride[d];
        index /= args.extent[d];
    }
    return place;
}

// Misalignment: elements between the last `unit`-byte boundary at or before the first element of dx
// (in memory order) and that element.
template <typename T>
__device__ int alignment_offset(const ScanArgs& args, i64 place, int unit = 16)
{
    const i64 address = reinterpret_cast<i64>(args.dx.data) / static_cast<i64>(sizeof(T)) + place,
              last = unit / static_cast<int>(sizeof(T)) - 1;
    return static_cast<int>((args.dx.step < 0 ? last - address : address) & last);
}
