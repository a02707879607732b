// The operands in the arguments of scans, and the offsets of rows and elements in memory.
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
#include "scan/args.gen.cuh"

// Inputs and outputs by number. kScanned has the elements that a scan combines: dy of a gradient,
// the input of a forward scan. kSaved has x, or the indices of the forward, from which a gradient
// finds its coefficients. kResult is dx, or the result of a forward scan. kIndices are those that
// forward cummax and cummin store. The gradient of a linear recurrence also reads states, and has a
// second result.
constexpr int kScanned = 0, kSaved = 1, kStates = 2;
constexpr int kResult = 0, kIndices = 1, kSecond = 1;

// The phase of a split scan in its last, or only, launch; the others are flags of ScanArgs.
constexpr int kDownsweep = 0;

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
