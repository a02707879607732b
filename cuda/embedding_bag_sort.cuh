// Occurrences of rows in the order of rows: a stable radix sort, least digit first, whose blocks each own a run of tiles.
//
//     keys      the entries in the order of positions, and the digits of each block counted
//     count     the digits of each block of later passes
//     scan      where each block begins among equal digits
//     scatter   each entry to its place
//     sort      all of them in one block
#pragma once

#include "embedding_bag.cuh"

constexpr int kWarps = kBlock / 32;
constexpr int kItems = kTile / kBlock;

__device__ inline u32 digit_of(const BagArgs& args, u32 row) { return row >> args.shift & ((1u << args.bits) - 1); }

// The sum of x over the threads before this one, and over all of them.
__device__ inline u32 sum_before(u32 x, u32& total)
{
    __shared__ u32 sums[kWarps];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 sum = x;
#pragma unroll
    for (int reach = 1; reach < 32; reach *= 2) {
        const u32 left = __shfl_up_sync(~0u, sum, reach);
        if (lane >= reach) sum += left;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    u32 before = 0;
    total = 0;
#pragma unroll
    for (u32 w = 0; w < kWarps; ++w) {
        before += w < warp ? sums[w] : 0;
        total += sums[w];
    }
    __syncthreads();
    return before + sum - x;
}

// The position that item j of this thread holds of a tile: each warp has a run of the tile, and its lanes are neighbours.
__device__ inline u32 item(int j) { return threadIdx.x / 32 * (32 * kItems) + j * 32 + threadIdx.x % 32; }

struct Ranks {
    u32 seen[kWarps][kDigits], peers[kWarps][kDigits], start[kDigits];
};

// The places of the n entries of a tile when it is sorted by a digit. Returns how many have the digit threadIdx.x; start is where those begin.
__device__ inline u32 rank(const BagArgs& args, Ranks& ranks, const Entry (&entry)[kItems], u32 n, u32 (&place)[kItems])
{
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) ranks.seen[w][threadIdx.x] = ranks.peers[w][threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
        const bool valid = item(j) < n;
        const u32 digit = digit_of(args, entry[j].row);
        u32 peers = 0, before = 0;  // the lanes with the same digit, and how many the warp has seen
        if (valid) atomicOr(&ranks.peers[warp][digit], 1u << lane);
        __syncwarp();
        if (valid) peers = ranks.peers[warp][digit], before = ranks.seen[warp][digit];
        __syncwarp();
        if (valid && lane == __ffs(peers) - 1) ranks.peers[warp][digit] = 0, ranks.seen[warp][digit] = before + __popc(peers);
        place[j] = before + __popc(peers & ((1u << lane) - 1));
        __syncwarp();
    }
    __syncthreads();
    u32 count = 0, all;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
        const u32 own = ranks.seen[w][threadIdx.x];
        ranks.seen[w][threadIdx.x] = count;
        count += own;
    }
    ranks.start[threadIdx.x] = sum_before(count, all);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
        const u32 digit = digit_of(args, entry[j].row);
        place[j] += ranks.start[digit] + ranks.seen[warp][digit];
    }
    return count;
}

// The bag of a position, for which the lanes of a warp search together. Whatever the offsets hold, it is a bag.
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

// The rows of this thread's items; all are loaded before the first is looked at.
template <typename I>
__device__ void load_rows(const BagArgs& args, i64 base, u32 n, i64 begin, i64 end, u32 (&row)[kItems])
{
    I index[kItems];
#pragma unroll
    for (int j = 0; j < kItems; ++j) index[j] = reinterpret_cast<const I*>(args.indices)[(base + min(item(j), n - 1)) * args.index_step];
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
        const i64 position = base + item(j);
        const bool counts = position >= begin && position < end && index[j] >= 0 && index[j] < args.rows && index[j] != args.padding;
        row[j] = static_cast<u32>(counts ? index[j] : args.rows);
    }
}

// The bags of this thread's items, side by side: the last of low..high that begins at the position or before it.
template <typename I>
__device__ void find_bags(const BagArgs& args, i64 base, u32 low, u32 high, u32 (&bag)[kItems])
{
    const I* offsets = reinterpret_cast<const I*>(args.offsets);
#pragma unroll
    for (int j = 0; j < kItems; ++j) bag[j] = low;
    for (u32 step = high > low ? 1u << (31 - __clz(high - low)) : 0; step > 0; step /= 2) {
        I found[kItems];
#pragma unroll
        for (int j = 0; j < kItems; ++j) found[j] = offsets[min(bag[j] + step, high) * args.offset_step];
#pragma unroll
        for (int j = 0; j < kItems; ++j)
            if (bag[j] + step <= high && found[j] <= base + item(j)) bag[j] += step;
    }
}

// Hands over the entries of this thread's items of the tile that begins at a position; leaves beside them what the rows need of bags.
template <typename Take>
__device__ void make_entries(const BagArgs& args, i64 base, u32 n, Take take)
{
    __shared__ i64 ends[2];  // the bags of the first and the last position
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = item(0) - lane;
    const i64 end = end_of(args);
    if (warp < 2) {
        const i64 bag = bag_by_warp(args, base + warp * (n - 1), 0, args.bags - 1);
        if (lane == 0) ends[warp] = bag;
    }
    __syncthreads();
    const u32 begin_bag = static_cast<u32>(ends[0]), end_bag = static_cast<u32>(max(ends[0], ends[1]));
    __syncthreads();
    if (first >= n) return;
    u32 row[kItems], bag[kItems];
    const i64 begin = args.bags ? max(offset_of(args, 0), i64(0)) : 0;
    if (args.index_wide)
        load_rows<i64>(args, base, n, begin, end, row);
    else
        load_rows<int>(args, base, n, begin, end, row);
    if (args.offset_wide)
        find_bags<i64>(args, base, begin_bag, end_bag, bag);
    else
        find_bags<int>(args, base, begin_bag, end_bag, bag);
    u32 waiting = 0, holder = ~0u;  // mean: counted indices of the bag that the warp was in last, kept by its lane 0
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
        const bool inside = item(j) < n;
        const i64 position = base + min(item(j), n - 1);
        const u32 own = bag[j];
        if (inside) take(j, Entry{row[j], args.positions ? static_cast<u32>(position) : own});
        if (args.positions && inside) at<u32>(args, args.bags_at)[position] = own;
        if (args.mean) {
            u32* counted = at<u32>(args, args.counted_at);
            const u32 counts = __ballot_sync(~0u, inside && row[j] < args.rows), head = __shfl_sync(~0u, own, 0);
            if (__all_sync(~0u, own == head)) {  // a long bag: one addition for many steps
                if (holder != head && waiting && lane == 0) atomicAdd(counted + holder, waiting);
                waiting = (holder == head ? waiting : 0) + __popc(counts);
                holder = head;
            } else {
                const u32 peers = __match_any_sync(~0u, own);
                if (lane == __ffs(peers) - 1 && (peers & counts)) atomicAdd(counted + own, __popc(peers & counts));
            }
        }
    }
    if (waiting && lane == 0) atomicAdd(at<u32>(args, args.counted_at) + holder, waiting);
}

// The lists of chunks begin empty.
__device__ inline void begin_lists(const BagArgs& args)
{
    if (blockIdx.x == 0 && threadIdx.x < 2) at<u32>(args, args.lists_at)[threadIdx.x] = 0;
}

// Writes how often each digit occurs in the tiles of this block; visit hands over the rows of a tile.
template <typename Visit>
__device__ void count_digits(const BagArgs& args, Visit visit)
{
    __shared__ u32 counts[kDigits];
    counts[threadIdx.x] = 0;
    __syncthreads();
    const i64 tiles = (args.total + kTile - 1) / kTile, first = blockIdx.x * args.tiles;
    for (i64 tile = first; tile < min(first + args.tiles, tiles); ++tile)
        visit(tile * kTile, static_cast<u32>(min(args.total - tile * kTile, i64(kTile))), [&](u32 row) { atomicAdd(&counts[digit_of(args, row)], 1); });
    __syncthreads();
    if (threadIdx.x < 1u << args.bits) at<u32>(args, args.counts_at)[i64(threadIdx.x) * gridDim.x + blockIdx.x] = counts[threadIdx.x];
}

__device__ inline void keys(const BagArgs& args)
{
    begin_lists(args);
    count_digits(args, [&](i64 base, u32 n, auto count) {
        make_entries(args, base, n, [&](int j, Entry e) {
            at<Entry>(args, args.to_at)[base + item(j)] = e;
            count(e.row);
        });
    });
}

__device__ inline void count(const BagArgs& args)
{
    count_digits(args, [&](i64 base, u32 n, auto count) {
#pragma unroll
        for (int j = 0; j < kItems; ++j)
            if (item(j) < n) count(at<const Entry>(args, args.from_at)[base + item(j)].row);
    });
}

// A block for each digit: the counts of args.tiles blocks become sums before each.
__device__ inline void scan(const BagArgs& args)
{
    u32* counts = at<u32>(args, args.counts_at) + blockIdx.x * args.tiles;
    u32 carry = 0;
    for (i64 base = 0; base < args.tiles; base += kBlock) {
        const i64 k = base + threadIdx.x;
        u32 all, before = sum_before(k < args.tiles ? counts[k] : 0, all);
        if (k < args.tiles) counts[k] = carry + before;
        carry += all;
    }
    if (threadIdx.x == 0) at<u32>(args, args.totals_at)[blockIdx.x] = carry;
}

__device__ inline void scatter(const BagArgs& args)
{
    __shared__ Ranks ranks;
    __shared__ Entry stage[kTile];
    __shared__ u32 target[kDigits];
    u32 all;
    const bool used = threadIdx.x < 1u << args.bits;
    const u32 before = sum_before(used ? at<u32>(args, args.totals_at)[threadIdx.x] : 0, all);
    target[threadIdx.x] = before + (used ? at<u32>(args, args.counts_at)[i64(threadIdx.x) * gridDim.x + blockIdx.x] : 0);
    const i64 tiles = (args.total + kTile - 1) / kTile, first = blockIdx.x * args.tiles;
    for (i64 tile = first; tile < min(first + args.tiles, tiles); ++tile) {
        const u32 n = static_cast<u32>(min(args.total - tile * kTile, i64(kTile)));
        Entry entry[kItems];
        u32 place[kItems];
#pragma unroll
        for (int j = 0; j < kItems; ++j) entry[j] = item(j) < n ? at<const Entry>(args, args.from_at)[tile * kTile + item(j)] : Entry{0, 0};
        const u32 count = rank(args, ranks, entry, n, place);
#pragma unroll
        for (int j = 0; j < kItems; ++j)
            if (item(j) < n) stage[place[j]] = entry[j];
        __syncthreads();
        for (u32 k = threadIdx.x; k < n; k += kBlock) {
            const u32 digit = digit_of(args, stage[k].row);
            at<Entry>(args, args.to_at)[target[digit] + (k - ranks.start[digit])] = stage[k];
        }
        __syncthreads();
        target[threadIdx.x] += count;
    }
}

// One block sorts one tile; args.tiles is the number of passes.
__device__ inline void sort(BagArgs args)
{
    __shared__ Ranks ranks;
    __shared__ Entry stage[kTile];
    const u32 n = static_cast<u32>(args.total);
    begin_lists(args);
    Entry entry[kItems];
    u32 place[kItems];
    make_entries(args, 0, n, [&](int j, Entry e) { stage[item(j)] = e; });
    for (i64 pass = 0; pass <= args.tiles; ++pass) {
#pragma unroll
        for (int j = 0; j < kItems; ++j) entry[j] = item(j) < n ? stage[item(j)] : Entry{0, 0};
        if (pass == args.tiles) break;
        rank(args, ranks, entry, n, place);
#pragma unroll
        for (int j = 0; j < kItems; ++j)
            if (item(j) < n) stage[place[j]] = entry[j];
        __syncthreads();
        args.shift += args.bits;
    }
#pragma unroll
    for (int j = 0; j < kItems; ++j)
        if (item(j) < n) at<Entry>(args, args.to_at)[item(j)] = entry[j];
}

// mean: counts begin at 0.
__device__ inline void clear(const BagArgs& args)
{
    const i64 bag = i64(blockIdx.x) * kBlock + threadIdx.x;
    if (bag < args.bags) at<u32>(args, args.counted_at)[bag] = 0;
}

// The first sorted entry of low..high-1 that is not before something, or high.
template <typename Before>
__device__ i64 search(const BagArgs& args, i64 low, i64 high, Before before)
{
    const Entry* entries = at<const Entry>(args, args.from_at);
    while (low < high) {
        const i64 middle = (low + high) / 2;
        if (before(entries[middle].row, middle))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// Appends k to a list for the threads of a warp that want it; count is how long the list is.
__device__ inline void append(bool wanted, u32 k, u32* count, u32* list)
{
    const u32 lane = threadIdx.x % 32, all = __ballot_sync(~0u, wanted);
    u32 begin = 0;
    if (lane == 0 && all) begin = atomicAdd(count, __popc(all));
    begin = __shfl_sync(~0u, begin, 0);
    if (wanted) list[begin + __popc(all & ((1u << lane) - 1))] = k;
}

// Where each unit begins, and where the last one ends: args.unit rows and entries belong to a unit when each row is followed by its
// entries, but the entries of a row stay together. And which chunks are of one row; lists have no order.
__device__ inline void bounds(const BagArgs& args)
{
    const i64 k = i64(blockIdx.x) * kBlock + threadIdx.x, chunks = args.total / kChunk;
    const i64 both = min(k * args.unit, args.rows + args.total);
    if (k * args.unit < args.rows + args.total + args.unit) {
        const i64 entries = search(args, 0, args.total, [&](i64 row, i64 e) { return row < args.rows && row + 1 + e < both; });
        const i64 row = min(both - entries, args.rows);
        const auto before = [&](i64 of, i64) { return of < row; };
        i64 begin = entries, end = args.total;
        for (i64 reach = 1; reach <= 64 && begin + reach < end; reach *= 8) {  // mostly not far
            if (!before(at<const Entry>(args, args.from_at)[begin + reach].row, 0)) end = begin + reach;
        }
        begin = search(args, begin, end, before);
        at<Entry>(args, args.bounds_at)[k] = Entry{static_cast<u32>(row), static_cast<u32>(begin)};
    }
    const Entry* chunk = at<const Entry>(args, args.from_at) + k * kChunk;
    const bool one = k < chunks && chunk[0].row < args.rows && chunk[0].row == chunk[kChunk - 1].row;
    u32* list = at<u32>(args, args.lists_at);
    append(one, static_cast<u32>(k), list, list + 2);
    append(one && (k == 0 || chunk[-kChunk].row != chunk[0].row), static_cast<u32>(k), list + 1, list + 2 + chunks);
}
