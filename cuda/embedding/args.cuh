// embedding/: gradients of tables whose rows are looked up by indices. Occurrences of rows are sorted, and segments of one row are summed.
//
// What the kernels of the embedding bag share: their argument, the entries that they sort, how an index is read.
#pragma once

#include "common/dtype.cuh"
#include "common/export.cuh"
#include "common/vec.cuh"

using u32 = unsigned;

// One struct for all of them. Strides and steps are in elements, `..._at` are bytes from the workspace, absent operands are 0.
struct BagArgs {
    const char* dy;
    i64 dy_bag, dy_column;
    const char* indices;
    i64 index_step, index_wide;  // 1: 64 bits
    const char* offsets;
    i64 offset_step, offset_wide;
    const char* sample_weights;
    i64 sample_weight_step, sample_weight_single;  // 1: float32 beside any T
    const char* max_indices;
    i64 max_bag, max_column, max_wide;
    const char* weight;
    i64 weight_row, weight_column;
    char* dweight;
    i64 dweight_row, dweight_column;
    char* dsample;
    i64 dsample_row, dsample_column, dsample_width, dsample_single;  // width: of its rows, 0 where it is one
    char* workspace;
    i64 rows, columns, bags, total;  // of weight, of weight, of dy, of indices
    i64 padding;                     // the row that counts nowhere, or -1
    i64 last, mean, by_frequency;    // flags; last: offsets end with where the last bag ends
    i64 positions;                   // 1: an entry carries its position through the sort, 0: its bag
    i64 from_at, to_at;              // entries: read, written
    i64 counts_at, totals_at;        // of a pass of the sort: [block][digit], [group of blocks][digit]
    i64 shift, bits, tiles;          // of a pass: the digit, and the tiles of a block; or how many 16 bytes to clear, or rows of a block of `few`
    i64 bags_at;                     // the bag of each position
    i64 counted_at;                  // mean: how many indices of each bag count
    i64 winners_at, won_at;          // max: a bit for each column that was won, for each position and for each sorted entry
    i64 unit, bounds_at;             // rows and entries, together, that the same threads go through; the row and the entry where each unit begins
    i64 partial_at;                  // sums of chunks, a level behind the other
    i64 parts, levels;               // how many chunks there may be on all levels, and how many levels
    i64 lanes, slices;               // threads that share a row, parts that a row is cut into
    i64 wide, plain;                 // 16-byte accesses; a summand is dy alone
    i64 chunk_blocks;                // blocks of the kernel of rows that sum chunks
    i64 lists_at;                    // ChunkLists
};

// An occurrence of a row: sorted by row, occurrences of one row by position.
struct alignas(8) Entry {
    u32 row, tag;
};

constexpr int kChunk = 32;   // entries of the smallest chunk, and chunks of a larger one
constexpr int kTile = 2048;  // entries that a block sorts at once
constexpr int kDigits = 256;
constexpr int kStretch = 32;  // adjacent positions that a warp looks up at once

template <typename T>
__device__ T* at(const BagArgs& args, i64 offset)
{
    return reinterpret_cast<T*>(args.workspace + offset);
}

// Of the smallest chunks, those that are all of one row.
struct ChunkLists {
    u32 *count, *chunk, *head;  // how many, and how many are the first of their row; which those are, in no order
    u32 *first, *whole;         // for each of them the first of its row; for that one how many its row has
    u32* done;                  // [slice][parts]: how many groups have stored their part of a row or of a larger chunk
};

__device__ inline ChunkLists chunk_lists(const BagArgs& args)
{
    u32* lists = at<u32>(args, args.lists_at);
    const i64 n = args.total / kChunk;
    return {lists, lists + 2, lists + 2 + n, lists + 2 + 2 * n, lists + 2 + 3 * n, lists + 2 + 4 * n};
}

__device__ inline i64 integer(const char* p, i64 k, i64 wide)
{
    return wide ? reinterpret_cast<const i64*>(p)[k] : reinterpret_cast<const int*>(p)[k];
}

__device__ inline i64 offset_of(const BagArgs& args, i64 bag) { return integer(args.offsets, bag * args.offset_step, args.offset_wide); }

// The last of the bags low..high that begins at a position or before it; low if none does. It is a bag whatever the offsets hold.
__device__ inline i64 bag_of(const BagArgs& args, i64 position, i64 low, i64 high)
{
    while (low < high) {
        const i64 middle = (low + high + 1) / 2;
        if (offset_of(args, middle) <= position)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// The same, for which the lanes of a warp search together.
__device__ inline i64 bag_by_warp(const BagArgs& args, i64 position, i64 low, i64 high)
{
    const i64 lane = threadIdx.x % 32;
    while (low < high) {
        const i64 step = (high - low + 31) / 32, probe = low + (lane + 1) * step;
        const int passed = __popc(__ballot_sync(~0u, probe <= high && offset_of(args, probe) <= position));
        low += passed * step;
        high = min(high, low + step - 1);
    }
    return low;
}

struct Range {
    u32 first, last;
};

// The bags of the first and of the last of n adjacent positions, for a block that goes through them.
__device__ inline Range bags_between(const BagArgs& args, i64 base, i64 n)
{
    __shared__ u32 ends[2];
    const int warp = threadIdx.x / 32;
    if (warp < 2) {
        const i64 bag = bag_by_warp(args, base + warp * (n - 1), 0, args.bags - 1);
        if (threadIdx.x % 32 == 0) ends[warp] = static_cast<u32>(bag);
    }
    __syncthreads();
    const Range bags = {ends[0], max(ends[0], ends[1])};
    __syncthreads();
    return bags;
}

template <typename T, typename A>
__device__ A sample_weight(const BagArgs& args, i64 position)
{
    const i64 at = position * args.sample_weight_step;
    if (sizeof(T) != sizeof(float) && args.sample_weight_single) return static_cast<A>(reinterpret_cast<const float*>(args.sample_weights)[at]);
    return widen<A>(reinterpret_cast<const T*>(args.sample_weights)[at]);
}

// Positions from here on count nowhere.
__device__ inline i64 end_of(const BagArgs& args)
{
    const i64 end = args.last ? offset_of(args, args.bags) : args.total;
    return args.bags == 0 ? 0 : min(end, args.total);
}

// The row of a position that counts, or args.rows. Nothing is in a bag before the first one.
__device__ inline i64 row_of(const BagArgs& args, i64 position, i64 end)
{
    if (position >= end || position < offset_of(args, 0)) return args.rows;
    const i64 row = integer(args.indices, position * args.index_step, args.index_wide);
    return row >= 0 && row < args.rows && row != args.padding ? row : args.rows;
}
