// embedding/: gradients of tables whose rows are looked up by indices. Occurrences of rows are
// radix-sorted, and segments of one row are summed.
//
// This file: the entries that embedding bags sort, and how an index is read.
#pragma once

#include "common/dtype.cuh"
#include "common/export.cuh"
#include "common/vec.cuh"
#include "embedding/args.gen.cuh"

using u32 = unsigned;

// An occurrence of a row. Entries are sorted by row, and by position within a row.
struct alignas(8) Entry {
    u32 row, tag;
};

constexpr int kDigits = 1 << kDigitBits;

template <typename T>
__device__ T* at(const BagArgs& args, i64 offset)
{
    return reinterpret_cast<T*>(args.workspace + offset);
}

// The smallest chunks whose entries are all of one row.
struct ChunkLists {
    // Number of such chunks, and of those that are the first of their row; lists of them,
    // unordered.
    u32 *count, *chunk, *head;
    u32 *first, *whole;  // for each of them the first of its row; for that one the number of its row's chunks
    u32* done;           // [slice][chunk_capacity]: groups that have stored their share of a row or of a larger chunk
};

__device__ inline ChunkLists chunk_lists(const BagArgs& args)
{
    u32* lists = at<u32>(args, args.lists_at);
    const i64 n = args.total / kChunk;
    return {lists, lists + 2, lists + 2 + n, lists + 2 + 2 * n, lists + 2 + 3 * n, lists + 2 + 4 * n};
}

// The units of the merge path: of rows and entries, or of entries if other rows are left alone.
__device__ inline i64 units(const BagArgs& args)
{
    const i64 all = args.only_entries ? args.total : args.rows + args.total;
    return (all + args.unit - 1) >> (__ffsll(args.unit) - 1);  // a power of two
}

__device__ inline i64 integer(const char* p, i64 k, i64 wide)
{
    return wide ? reinterpret_cast<const i64*>(p)[k] : reinterpret_cast<const int*>(p)[k];
}

__device__ inline i64 offset_of(const BagArgs& args, i64 bag) { return integer(args.offsets, bag * args.offset_step,
    args.offset_wide); }

// The last of the bags low..high that begins at or before a position; low if none does. In range
// whatever the offsets hold.
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

// The same search by all lanes of a warp together.
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
    u32 first, last;  // last: of bags, the last one; of rows and entries, the end
};

// The bags of the first and of the last of n adjacent positions, for a CTA.
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
    if (sizeof(T) != sizeof(float) && args.sample_weight_single)
        return static_cast<A>(reinterpret_cast<const float*>(args.sample_weights)[at]);
    return widen<A>(reinterpret_cast<const T*>(args.sample_weights)[at]);
}

// Positions from here on are not counted.
__device__ inline i64 end_of(const BagArgs& args)
{
    const i64 end = args.last ? offset_of(args, args.bags) : args.total;
    return args.bags == 0 ? 0 : min(end, args.total);
}

// One of several tables. Its rows and columns are some of all rows and columns.
struct Table {
    i64 row, element, column;  // the first of each
    i64 rows, columns;
};

__device__ inline Table table_at(const BagArgs& args, i64 number)
{
    const i64* p = args.tables + number * 3;
    return {p[0], p[1], p[2], p[3] - p[0], p[5] - p[2]};
}

// The rows that the indices of a bag count.
__device__ inline Range rows_of(const BagArgs& args, u32 bag)
{
    if (!args.tables || args.bags == 0) return {0, static_cast<u32>(args.rows)};
    const i64* table = args.tables + bag / static_cast<u32>(args.table_bags) * 3;
    return {static_cast<u32>(table[0]), static_cast<u32>(table[3])};
}

// Whether the bounds of a bag of several tables are in order and have a position.
__device__ inline bool has(const BagArgs& args, i64 bag, i64 position)
{
    if (!args.tables) return true;
    const i64 end = offset_of(args, bag + 1);
    return offset_of(args, bag) <= position && position < end && end <= args.total;
}

// The row of a position of a bag, or args.rows if it is not counted. Positions before the first bag
// are in none.
__device__ inline i64 row_of(const BagArgs& args, i64 position, i64 bag, i64 end)
{
    if (position >= end || position < offset_of(args, 0)) return args.rows;
    const i64 index = integer(args.indices, position * args.index_step, args.index_wide);
    const Range rows = rows_of(args, static_cast<u32>(bag));
    return index >= 0 && index < rows.last - rows.first && index != args.padding && has(args, bag, position)
        ? rows.first + index : args.rows;
}
