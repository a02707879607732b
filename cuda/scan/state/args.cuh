// The launch arguments of scans, and where rows and elements lie in memory by them.
#pragma once

#include "common/dtype.cuh"

enum : i64 {
    kFirst = 1,      // among equals the first wins
    kMinimum = 2,    // cummin
    kReversed = 4,   // positions run against scan order (matters to indices alone)
    kHeads = 8,      // find the heads of parts, and nothing else
    kTails = 16,     // find the tails of parts, given the heads
    kDense = 32,     // of less than 2^32 rows, one stride apart; whole aligned vectors make a row (for `rows`, those of a warp), but dy may repeat a number
    kMarked = 64,    // of strips, those alone that are undone, as `bad` says
    kLeads = 128,    // with kDense, of a row: it begins and ends anywhere in such vectors, in the same place of them in all operands
    kLines = 256,    // with kLeads: also in the same place of cache lines
    kFull = 512,     // with kDense, of `row`: no warp has fewer elements than it may have, and all operands run forward
    kForesee = 1024  // of `row`: memory is so quick that rows of blocks to come are brought nearer meanwhile
};

struct Strided {
    char* data;
    i64 first, step, stride[7];  // in elements: where the first is in scan order; along the scanned dim
};

struct ScanArgs {
    i64 n, dims, extent[7];  // the scanned dim; the other dims, fastest first
    i64 tiles, parts, strips, width, height, flags, skip, records;
    char* states;  // of parts and tiles, after `skip` bytes; after `records` bytes a bit for each element, tile by tile
    int* bad;      // indices: [0] some row, [1 + row] this row has indices that no scan gives; strips: [strip], of pieces [strip, piece], the faults of a kind that is tried first, and behind them how many blocks met that do some again
    Strided dy, x, dx;
};

// Where `index` of the other dims from..dims-1 is in each operand.
struct Places {
    i64 dy, x, dx;

    // With no more than one of them.
    template <typename Index>
    __device__ static Places at_stride(const ScanArgs& args, int from, Index index)
    {
        const auto of = [&](const Strided& operand) { return operand.first + static_cast<i64>(index) * operand.stride[from]; };
        return {of(args.dy), of(args.x), of(args.dx)};
    }

    __device__ static Places of(const ScanArgs& args, int from, i64 index)
    {
        if (args.dims <= from + 1) return at_stride(args, from, index);
        i64 dy = args.dy.first, x = args.x.first, dx = args.dx.first;
#pragma unroll 1
        for (int d = from; d < args.dims; ++d) {
            const i64 extent = args.extent[d];
            const bool small = index >> 31 == 0 && extent >> 31 == 0;  // a short division will do
            const i64 rest = small ? static_cast<unsigned>(index) / static_cast<unsigned>(extent) : index / extent;
            const i64 k = index - rest * extent;
            dy += k * args.dy.stride[d], x += k * args.x.stride[d], dx += k * args.dx.stride[d];
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

// How far the first element of dx is from one that begins an aligned unit of so many bytes.
template <typename T>
__device__ int lead_of(const ScanArgs& args, i64 place, int unit = 16)
{
    const i64 address = reinterpret_cast<i64>(args.dx.data) / static_cast<i64>(sizeof(T)) + place, last = unit / static_cast<int>(sizeof(T)) - 1;
    return static_cast<int>((args.dx.step < 0 ? last - address : address) & last);
}
