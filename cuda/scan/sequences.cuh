// The launches that prepare and finish scans of packed sequences and exclusive scans: scan_heads
// and scan_fill.
#pragma once

#include "common/dtype.cuh"
#include "scan/state/operands.cuh"

__device__ inline i64 bound_at(const Bounds& bounds, i64 k)
{
    return bounds.is_wide ? reinterpret_cast<const i64*>(bounds.data)[k * bounds.step]
                          : reinterpret_cast<const int*>(bounds.data)[k * bounds.step];
}

// How many bounds before `end` are less than `least`, if they rise. All threads of the CTA call it.
__device__ inline i64 count_less(const Bounds& bounds, i64 least)
{
    i64 begin = 0, end = bounds.count;
    while (begin < end) {  // each thread probes the last bound of its part
        const i64 part = (end - begin + kBlockThreads - 1) / kBlockThreads,
                  probe = begin + (threadIdx.x + 1) * part - 1;
        const int less = __syncthreads_count(probe < end && bound_at(bounds, probe) < least);
        begin += less * part;
        end = min(end, begin + part - 1);
    }
    return begin;
}

// Writes the heads of args.positions positions, also that of the position behind the row. The first
// position of a row is a head whatever the bounds are, unless the row is a chunk.
__device__ inline void store_heads(const HeadsArgs& args)
{
    // A byte for each position: many bounds would wait for each other to set bits of one word.
    __shared__ uint4 bytes[kMaxHeadPositions / 16];
    unsigned char* is_head = reinterpret_cast<unsigned char*>(bytes);
    const int positions = static_cast<int>(args.positions);
    const i64 first = static_cast<i64>(blockIdx.x) * positions;
    const bool begins_row = first == 0 && !args.is_chunk;
    for (int i = threadIdx.x; i < positions / 16; i += kBlockThreads)
        bytes[i] = uint4{i == 0 && begins_row, 0, 0, 0};
    // The least and the largest bound of these positions.
    const i64 low = args.is_reversed ? args.n - first - (positions - 1) : first, high = low + positions - 1;
    const i64 begin = count_less(args.bounds, low);
    __syncthreads();
    constexpr int IN_FLIGHT = 8;  // loads
    for (i64 k = begin + threadIdx.x; k < args.bounds.count; k += IN_FLIGHT * kBlockThreads) {
        i64 some[IN_FLIGHT];
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; ++j) {
            const i64 at = k + j * kBlockThreads;
            some[j] = at < args.bounds.count ? bound_at(args.bounds, at) : high + 1;
        }
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; ++j) {
            const i64 position = (args.is_reversed ? args.n - some[j] : some[j]) - first;
            if (position >= 0 && position < min(args.n + 1 - first, i64(positions)))
                is_head[position] = 1;
        }
        if (some[IN_FLIGHT - 1] > high) break;
    }
    __syncthreads();
    // The bits of four bytes that are 0 or 1.
    const auto bits = [](unsigned four) { return (four | four >> 7 | four >> 14 | four >> 21) & 15; };
    const auto packed = [&](const uint4& x) { return bits(x.x) | bits(x.y) << 4 | bits(x.z) << 8 | bits(x.w) << 12; };
    // heads_at reads two words: one more than there are positions.
    for (int w = threadIdx.x; w < positions / 32; w += kBlockThreads)
        if (first / 32 + w <= args.n / 32 + 1)
            args.heads[first / 32 + w] = packed(bytes[2 * w]) | packed(bytes[2 * w + 1]) << 16;
}

// Stores args.value at one end of each sequence of each row, the first or the last position in scan
// order, or of each row if there are no bounds. A thread stores one number.
template <typename T>
__device__ void fill_ends(const FillArgs& args)
{
    const i64 i = static_cast<i64>(blockIdx.x) * kBlockThreads + threadIdx.x, sequence = i / args.rows,
              row = i - sequence * args.rows;
    if (sequence >= max(args.bounds.count - 1, i64(1))) return;
    i64 begin = 0, end = args.n;
    if (args.bounds.count) begin = bound_at(args.bounds, sequence), end = bound_at(args.bounds, sequence + 1);
    if (begin >= end || begin < 0 || end > args.n) return;
    const Strided& result = args.outputs[kResult];
    reinterpret_cast<T*>(result.data)[offset_of(args, result, row) + (args.at_end ? end - 1 : begin) * result.step] =
        static_cast<T>(args.value);
}
