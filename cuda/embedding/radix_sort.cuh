// A stable LSD radix sort of row occurrences; each CTA owns a run of tiles.
//
//     keys      makes the entries, in the order of positions, and the digit histogram of each CTA
//     count     the digit histogram of each CTA in later passes
//     scatter   moves each entry to its place
//     sort      all passes in one CTA
#pragma once

#include "embedding/args.cuh"
#include "embedding/optimizer.cuh"

constexpr int kWarps = kBlockThreads / 32;
constexpr int kItems = kTile / kBlockThreads;


// Counters of a CTA: one for each digit, padded so that four are read at once.
__device__ inline u32 counters(const BagArgs& args) { return max(1u << args.bits, 4u); }

__device__ inline u32 digit_of(const BagArgs& args, u32 row) { return row >> args.shift & ((1u << args.bits) - 1); }

// Exclusive prefix sum of x over the threads of the CTA, and the total.
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

// The position of item j of this thread in a tile: each warp has a run of the tile, and its lanes
// are adjacent.
__device__ inline u32 item(int j) { return threadIdx.x / 32 * (32 * kItems) + j * 32 + threadIdx.x % 32; }

struct Ranks {
    u32 seen[kWarps][kDigits], peers[kWarps][kDigits], start[kDigits];
};

// Ranks the n items of a tile by digit. Returns the number of items with digit threadIdx.x; start
// is where they begin.
template <typename Digit>
__device__ u32 rank(Ranks& ranks, u32 n, u32 (&place)[kItems], Digit digit_of_item)
{
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) ranks.seen[w][threadIdx.x] = ranks.peers[w][threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
        const bool valid = item(j) < n;
        const u32 digit = digit_of_item(j);
        u32 peers = 0, before = 0;  // lanes with the same digit (match); items of the warp so far with that digit
        if (valid) atomicOr(&ranks.peers[warp][digit], 1u << lane);
        __syncwarp();
        if (valid) peers = ranks.peers[warp][digit], before = ranks.seen[warp][digit];
        __syncwarp();
        if (valid && lane == __ffs(peers) - 1)
            ranks.peers[warp][digit] = 0, ranks.seen[warp][digit] = before + __popc(peers);
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
        const u32 digit = digit_of_item(j);
        place[j] += ranks.start[digit] + ranks.seen[warp][digit];
    }
    return count;
}

// The indices of this thread's items, all in flight at once.
template <typename I>
__device__ void load_indices(const BagArgs& args, i64 base, u32 n, i64 (&index)[kItems])
{
#pragma unroll
    for (int j = 0; j < kItems; ++j) index[j] =
        (reinterpret_cast<const I*>(args.indices) + base * args.index_step)[min(item(j), n - 1) * args.index_step];
}

// Finds the bags of this thread's items of a tile of n, within a known range: offsets pass through
// shared memory, a part at a time. Without offsets the range is one bag, the first position of the
// tile. Returns whether the bounds of the bags of several tables may be out of order, or leave out
// positions of the tile, so that has() must tell which bags have a position.
__device__ inline bool find_bags(const BagArgs& args, i64 base, u32 n, Range bags, u32 (&bag)[kItems])
{
    constexpr u32 kPart = 1024;
    __shared__ int begins[kPart];
    bool doubtful = false;
    if (args.tables && args.bags > 0) {
        const i64 last = offset_of(args, bags.last), end = offset_of(args, bags.last + 1);
        doubtful = offset_of(args, bags.first) > base || last > end || end < base + n || end > args.total;
    }
#pragma unroll
    for (int j = 0; j < kItems; ++j) bag[j] = bags.first + (args.bagless ? item(j) : 0);
    for (u32 low = bags.first + 1; low <= bags.last; low += kPart) {
        const u32 many = min(bags.last - low + 1, kPart);
        __syncthreads();
        for (u32 k = threadIdx.x; k < many; k += kBlockThreads) {
            const i64 begin = offset_of(args, low + k);
            begins[k] = static_cast<int>(min(max(begin, base - 1), base + kTile) - base);
            doubtful = doubtful || (args.tables && offset_of(args, low + k - 1) > begin);
        }
        __syncthreads();
        u32 passed[kItems] = {};
        for (u32 step = 1u << (31 - __clz(many)); step > 0; step /= 2) {
#pragma unroll
            for (int j = 0; j < kItems; ++j)
                if (passed[j] + step <= many && begins[passed[j] + step - 1] <= static_cast<int>(item(j)))
                    passed[j] += step;
        }
#pragma unroll
        for (int j = 0; j < kItems; ++j)
            if (passed[j]) bag[j] = low + passed[j] - 1;
    }
    return args.tables && __syncthreads_or(doubtful);
}

// The rows and bags of this thread's items of the tile that begins at a position; args.rows for
// items that are not counted.
__device__ inline void read_items(const BagArgs& args, i64 base, u32 n, u32 (&row)[kItems], u32 (&bag)[kItems])
{
    const auto clip = [&](i64 position) { return static_cast<u32>(min(max(position - base, i64(0)), i64(n))); };
    u32 begin = 0, end = n;  // positions within bags
    Range bags = {static_cast<u32>(base), static_cast<u32>(base)};
    if (!args.bagless) {
        begin = args.bags ? clip(offset_of(args, 0)) : 0, end = clip(end_of(args));
        bags = bags_between(args, base, n);
    }
    i64 index[kItems];
    if (args.index_wide)
        load_indices<i64>(args, base, n, index);
    else
        load_indices<int>(args, base, n, index);
    const bool doubtful = find_bags(args, base, n, bags, bag);
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
        const Range rows = rows_of(args, bag[j]);
        const bool valid = static_cast<unsigned long long>(index[j]) < rows.last - rows.first
            && index[j] != args.padding;
        const bool counts = valid && item(j) >= begin && item(j) < end
            && (!doubtful || has(args, bag[j], base + item(j)));
        row[j] = static_cast<u32>(counts ? rows.first + index[j] : args.rows);
    }
}

// Stores the entries of this thread's items, and the bag data that the rows need.
template <typename Take>
__device__ void make_entries(const BagArgs& args, i64 base, u32 n, Take take)
{
    const u32 lane = threadIdx.x % 32;
    u32 row[kItems], bag[kItems];
    read_items(args, base, n, row, bag);
    if (item(0) - lane >= n) return;
    u32 waiting = 0, holder = ~0u;  // mean: counted indices of the current bag of the warp, kept by lane 0
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
        const bool inside = item(j) < n;
        const u32 own = bag[j], position = static_cast<u32>(base) + item(j);
        if (inside) take(j, Entry{row[j], args.positions ? position : own});
        if (args.positions && inside) at<u32>(args, args.bags_at)[position] = own;
        if (args.mean) {
            u32* counted = at<u32>(args, args.counted_at);
            const u32 counts = __ballot_sync(~0u, inside && row[j] < args.rows), head = __shfl_sync(~0u, own, 0);
            if (__all_sync(~0u, own == head)) {  // a long bag: one atomic addition for many steps
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

// Empties the lists of chunks, and counts the run of an optimizer.
__device__ inline void begin_run(const BagArgs& args)
{
    if (blockIdx.x > 0) return;
    if (threadIdx.x < 2) chunk_lists(args).count[threadIdx.x] = 0;
    if (threadIdx.x == kBlockThreads - 1 && args.options) advance(args.options);
}

// Stores the digit histogram of the tiles of this CTA and adds it to that of its group; visit gives
// the rows of a tile.
template <typename Visit>
__device__ void count_digits(const BagArgs& args, Visit visit)
{
    __shared__ u32 counts[kDigits];
    counts[threadIdx.x] = 0;
    __syncthreads();
    const i64 tiles = (args.total + kTile - 1) / kTile, first = blockIdx.x * args.tiles;
    for (i64 tile = first; tile < min(first + args.tiles, tiles); ++tile)
        visit(tile * kTile, static_cast<u32>(min(args.total - tile * kTile, i64(kTile))),
              [&](u32 row) { atomicAdd(&counts[digit_of(args, row)], 1); });
    __syncthreads();
    const u32 n = counters(args);
    if (threadIdx.x >= n) return;
    at<u32>(args, args.counts_at)[i64(blockIdx.x) * n + threadIdx.x] = counts[threadIdx.x];
    atomicAdd(at<u32>(args, args.totals_at) + i64(blockIdx.x / kGroup) * n + threadIdx.x, counts[threadIdx.x]);
}

__device__ inline void keys(const BagArgs& args)
{
    begin_run(args);
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

// For the digit of this thread: entries of the CTAs before this one, and of all CTAs.
__device__ inline Range count_before(const BagArgs& args)
{
    constexpr int kRows = kGroup / kWarps;  // of each table, for a warp
    __shared__ u32 before[kDigits], all[kDigits];
    const u32 n = counters(args), warp = threadIdx.x / 32, group = blockIdx.x / kGroup,
        groups = (gridDim.x + kGroup - 1) / kGroup;
    before[threadIdx.x] = all[threadIdx.x] = 0;
    __syncthreads();
    for (u32 digit = threadIdx.x % 32 * 4; digit < n; digit += 32 * 4) {
        Pack<u32, 4> counts[kRows], totals[kRows];
#pragma unroll
        for (u32 r = 0; r < kRows; ++r) {
            const u32 other = r * kWarps + warp, block = group * kGroup + other;
            counts[r] = totals[r] = {};
            if (block < blockIdx.x) counts[r] = load_wide<4>(at<const u32>(args, args.counts_at) + block * n + digit);
            if (other < groups) totals[r] = load_wide<4>(at<const u32>(args, args.totals_at) + other * n + digit);
        }
#pragma unroll
        for (int d = 0; d < 4; ++d) {
            u32 sum_before = 0, sum_all = 0;
#pragma unroll
            for (u32 r = 0; r < kRows; ++r) {
                sum_all += totals[r].at[d];
                sum_before += counts[r].at[d] + (r * kWarps + warp < group ? totals[r].at[d] : 0);
            }
            if (sum_before) atomicAdd(before + digit + d, sum_before);
            if (sum_all) atomicAdd(all + digit + d, sum_all);
        }
    }
    __syncthreads();
    return {before[threadIdx.x], all[threadIdx.x]};
}

__device__ inline void scatter(const BagArgs& args)
{
    __shared__ Ranks ranks;
    __shared__ Entry stage[kTile];
    __shared__ u32 target[kDigits];
    const Range own = count_before(args);
    u32 all;
    target[threadIdx.x] = own.first + sum_before(own.last, all);
    const i64 tiles = (args.total + kTile - 1) / kTile, first = blockIdx.x * args.tiles;
    for (i64 tile = first; tile < min(first + args.tiles, tiles); ++tile) {
        const u32 n = static_cast<u32>(min(args.total - tile * kTile, i64(kTile)));
        Entry entry[kItems];
        u32 place[kItems];
#pragma unroll
        for (int j = 0; j < kItems; ++j)
            entry[j] = item(j) < n ? at<const Entry>(args, args.from_at)[tile * kTile + item(j)] : Entry{0, 0};
        const u32 count = rank(ranks, n, place, [&](int j) { return digit_of(args, entry[j].row); });
#pragma unroll
        for (int j = 0; j < kItems; ++j)
            if (item(j) < n) stage[place[j]] = entry[j];
        __syncthreads();
        for (u32 k = threadIdx.x; k < n; k += kBlockThreads) {
            const u32 digit = digit_of(args, stage[k].row);
            at<Entry>(args, args.to_at)[target[digit] + (k - ranks.start[digit])] = stage[k];
        }
        __syncthreads();
        target[threadIdx.x] += count;
    }
}

// Sorts one tile in one CTA; args.tiles is the number of passes.
__device__ inline void sort(BagArgs args)
{
    __shared__ Ranks ranks;
    __shared__ Entry stage[kTile];
    const u32 n = static_cast<u32>(args.total);
    begin_run(args);
    Entry entry[kItems];
    u32 place[kItems];
    make_entries(args, 0, n, [&](int j, Entry e) { stage[item(j)] = e; });
    for (i64 pass = 0; pass <= args.tiles; ++pass) {
#pragma unroll
        for (int j = 0; j < kItems; ++j) entry[j] = item(j) < n ? stage[item(j)] : Entry{0, 0};
        if (pass == args.tiles) break;
        rank(ranks, n, place, [&](int j) { return digit_of(args, entry[j].row); });
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
