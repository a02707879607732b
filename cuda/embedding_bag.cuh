// What the kernels of the embedding bag share: their argument, the entries that they sort, how an index is read.
#pragma once

#include "kernel.cuh"

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
    i64 sample_weight_step;
    const char* max_indices;
    i64 max_bag, max_column, max_wide;
    const char* weight;
    i64 weight_row, weight_column;
    char* dweight;
    i64 dweight_row, dweight_column;
    char* dsample;
    i64 dsample_step;
    char* workspace;
    i64 rows, columns, bags, total;  // of weight, of weight, of dy, of indices
    i64 padding;                     // the row that counts nowhere, or -1
    i64 last, mean, by_frequency;    // flags; last: offsets end with where the last bag ends
    i64 positions;                   // 1: an entry carries its position, 0: its bag
    i64 from_at, to_at;              // entries: read, written
    i64 counts_at, totals_at;        // of a pass of the sort: [digit][block], [digit]
    i64 shift, bits, tiles;          // of a pass: the digit, and the tiles of a block
    i64 bags_at;                     // the bag of each position
    i64 counted_at;                  // mean: how many indices of each bag count
    i64 winners_at;                  // max: for each position, a bit for each column that it won
    i64 unit, bounds_at;             // rows and entries, together, that the same threads go through; the row and the entry where each unit begins
    i64 partial_at, parts_at;        // sums of chunks: written; those that they are made of
    i64 chunk;                       // entries of a chunk that is written
    i64 levels;                      // of chunks
    i64 lanes, slices;               // threads that share a row, parts that a row is cut into
    i64 wide, plain;                 // 16-byte accesses; a summand is dy alone
    i64 chunk_blocks;                // blocks of the kernel of rows that sum chunks
    i64 lists_at;                    // how many chunks of one row there are, and how many of them are the first of theirs; both lists
};

// An occurrence of a row: sorted by row, occurrences of one row by position.
struct alignas(8) Entry {
    u32 row, tag;
};

constexpr int kChunk = 32;   // entries of the smallest chunk, and chunks of a larger one
constexpr int kTile = 2048;  // entries that a block sorts at once
constexpr int kDigits = 256;
constexpr int kStretch = 16;  // adjacent positions that a warp looks up at once

template <typename T>
__device__ T* at(const BagArgs& args, i64 offset)
{
    return reinterpret_cast<T*>(args.workspace + offset);
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
