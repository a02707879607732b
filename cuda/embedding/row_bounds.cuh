// Where rows begin among the sorted entries: the units of the merge path that groups of threads
// handle, and the chunks that are of one row.
#pragma once

#include "embedding/args.cuh"

// Lower bound: the first sorted entry of low..high-1 that is not before a key, or high. Each step
// reads kProbes entries at once.
template <typename Before>
__device__ i64 search(const BagArgs& args, i64 low, i64 high, Before before)
{
    constexpr int kProbes = 7;
    const Entry* entries = at<const Entry>(args, args.from_at);
    while (low < high) {
        const i64 step = (high - low) / (kProbes + 1);
        u32 row[kProbes];
        int less = 0;
#pragma unroll
        for (int p = 0; p < kProbes; ++p) row[p] = entries[low + (p + 1) * step].row;
#pragma unroll
        for (int p = 0; p < kProbes; ++p) less += before(row[p], low + (p + 1) * step);
        if (less < kProbes) high = low + (less + 1) * step;
        if (less > 0) low += less * step + 1;
    }
    return low;
}

// Lower bound in 0..high-1 by the lanes of a warp together.
template <typename Before>
__device__ i64 first_by_warp(i64 high, Before before)
{
    for (i64 low = 0;;) {
        const i64 step = (high - low + 31) / 32, probe = low + (threadIdx.x % 32 + 1) * step - 1;
        const bool less = before(min(probe, high));
        low += __popc(__ballot_sync(~0u, probe < high && less)) * step;
        high = min(high, low + step - 1);
        if (low >= high) return high;
    }
}

// Appends k to a list for the threads of a warp with `want`, by one atomic; count is the length of
// the list.
__device__ inline void append(bool wanted, u32 k, u32* count, u32* list)
{
    const u32 lane = threadIdx.x % 32, all = __ballot_sync(~0u, wanted);
    u32 begin = 0;
    if (lane == 0 && all) begin = atomicAdd(count, __popc(all));
    begin = __shfl_sync(~0u, begin, 0);
    if (wanted) list[begin + __popc(all & ((1u << lane) - 1))] = k;
}

// Finds where each unit begins, and where the last one ends (merge path): a unit is args.unit rows
// and entries, where each row is followed by its entries, but the entries of a row stay together.
__device__ inline void begin_unit(const BagArgs& args, i64 k)
{
    const i64 both = min(k * args.unit, args.rows + args.total);
    const i64 entries = search(args, 0, args.total, [&](i64 row, i64 e) { return row < args.rows
        && row + 1 + e < both; });
    const i64 row = min(both - entries, args.rows);
    const auto before = [&](i64 of, i64) { return of < row; };
    i64 begin = entries, end = args.total;
    for (i64 reach = 1; reach <= 64 && begin + reach < end; reach *= 8) {  // galloping search: usually near
        if (!before(at<const Entry>(args, args.from_at)[begin + reach].row, 0)) end = begin + reach;
    }
    begin = search(args, begin, end, before);
    at<Entry>(args, args.bounds_at)[k] = Entry{static_cast<u32>(row), static_cast<u32>(begin)};
}

// The same for units of entries alone, each of which begins where a row does.
__device__ inline void begin_unit_of_entries(const BagArgs& args, i64 k)
{
    const Entry* entries = at<const Entry>(args, args.from_at);
    const i64 rows = args.rows;
    i64 begin = min(k * args.unit, args.total);
    if (begin > 0) {
        const u32 left = entries[begin - 1].row;
        i64 end = args.total;
        const auto before = [&](i64 of, i64) { return of <= left && of < rows; };
        for (i64 reach = 0; reach <= 64 && begin + reach < end; reach = reach * 8 + 1) {  // usually near
            if (!before(entries[begin + reach].row, 0)) end = begin + reach;
        }
        begin = left < rows ? search(args, begin, end, before) : search(args, 0, begin, before);
    }
    const u32 row = begin < args.total ? entries[begin].row : static_cast<u32>(rows);
    at<Entry>(args, args.bounds_at)[k] = Entry{row, static_cast<u32>(begin)};
}

// Lists the chunks of one row among 32 adjacent ones; this lane has number k.
__device__ inline void list_chunks(const BagArgs& args, i64 k)
{
    const i64 chunks = args.total / kChunk;
    const ChunkLists lists = chunk_lists(args);
    const Entry* entries = at<const Entry>(args, args.from_at);
    const auto row_at = [&](i64 chunk, int e) { return chunk >= 0 && chunk < chunks
                                               ? entries[chunk * kChunk + e].row : ~0u; };
    const u32 row = row_at(k, 0);
    const bool one = row < args.rows && row_at(k, kChunk - 1) == row;
    const bool head = one && row_at(k - 1, 0) != row;
    const u32 heads = __ballot_sync(~0u, head) & ((2u << threadIdx.x % 32) - 1);
    append(one, static_cast<u32>(k), lists.count, lists.chunk);
    append(head, static_cast<u32>(k), lists.count + 1, lists.head);
    const i64 base = k & ~i64(31);
    i64 first = base + 31 - __clz(heads);
    if (__any_sync(~0u, one && heads == 0)) {  // the first row began in earlier chunks: the lanes search where
        const u32 goes_on = __shfl_sync(~0u, row, 0);
        const i64 begin = first_by_warp(base, [&](i64 chunk) { return row_at(chunk, 0) < goes_on; });
        if (heads == 0) first = begin;
    }
    if (!one) return;
    lists.first[k] = static_cast<u32>(first);
    if (row_at(k + 1, kChunk - 1) != row) lists.whole[first] = static_cast<u32>(k + 1 - first);
}

__device__ inline void bounds(const BagArgs& args)
{
    const i64 k = i64(blockIdx.x) * kBlockThreads + threadIdx.x;
    for (i64 part = k; part < args.slices * args.chunk_capacity; part += i64(gridDim.x) * kBlockThreads)
        chunk_lists(args).done[part] = 0;
    if (k <= units(args)) args.only_entries ? begin_unit_of_entries(args, k) : begin_unit(args, k);
    list_chunks(args, k);
}
