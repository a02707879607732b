// The rows of dweight from the sorted entries. `lanes` threads share a slice of a row, V columns each, and add its entries in order.
//
//     rows      every row once, zeros included, except long ones; beside them, the sums of the smallest chunks
//     chunks    sums of larger chunks from those of smaller ones
//     long_rows the rows that hold a whole chunk, from chunks and from the entries before and behind them
//
// A chunk is kChunk aligned entries, or kChunk aligned chunks, all of one row: so the order of a sum follows from the entries alone.
#pragma once

#include "embedding_bag.cuh"

constexpr int kRun = 16;    // a running sum goes to the next level after so many additions
constexpr int kFlight = 8;  // vectors that a thread loads before it adds the first

template <typename T, typename A, int V>
struct RowSum {
    const BagArgs& args;
    int lanes, lane;   // of the group of threads
    u32 group;         // the warp's threads that belong to it
    u32 unit, column;  // which part of the work is the group's, and the first of the columns that this thread adds
    bool active;
    A run[V], total[V];
    u32 added;

    __device__ RowSum(const BagArgs& a, i64 block) : args(a), lanes(static_cast<int>(a.lanes))
    {
        lane = threadIdx.x % lanes;
        group = lanes == 32 ? ~0u : ((1u << lanes) - 1) << (threadIdx.x % 32 - lane);
        const i64 slot = (block * kBlock + threadIdx.x) / lanes;
        unit = static_cast<u32>(slot / args.slices);
        column = static_cast<u32>(((slot % args.slices) * lanes + lane) * V);
        active = column < args.columns;
        reset();
    }

    __device__ void reset()
    {
#pragma unroll
        for (int v = 0; v < V; ++v) run[v] = total[v] = 0;
        added = 0;
    }

    __device__ const Entry& entry(u32 k) const { return at<const Entry>(args, args.from_at)[k]; }

    template <typename Value>
    __device__ void add(Value value)
    {
#pragma unroll
        for (int v = 0; v < V; ++v) run[v] += value(v);
        if (++added % kRun == 0) {
#pragma unroll
            for (int v = 0; v < V; ++v) total[v] += run[v], run[v] = 0;
        }
    }

    // What each lane knows of one entry.
    struct Source {
        u32 row, bag, position;
        A scale;
    };

    __device__ Source source(u32 k, bool inside) const
    {
        Source s = {0, 0, 0, A(1)};
        if (!inside) return s;
        const Entry e = entry(k);
        s.row = e.row;
        s.bag = args.positions ? at<const u32>(args, args.bags_at)[e.tag] : e.tag;
        s.position = e.tag;
        if (args.sample_weights) s.scale = widen<A>(reinterpret_cast<const T*>(args.sample_weights)[e.tag * args.sample_weight_step]);
        if (args.mean) s.scale = A(1) / A(at<const u32>(args, args.counted_at)[s.bag]);
        if (args.max_indices && k > 0) {  // a row twice in one bag wins its columns once
            const Entry before = entry(k - 1);
            if (before.row == e.row && at<const u32>(args, args.bags_at)[before.tag] == s.bag) s.bag = ~0u;
        }
        return s;
    }

    // dy of a bag, 0 in columns that another position won.
    __device__ void load(Words<T, V>& x, u32 bag, u32 position) const
    {
#pragma unroll
        for (int w = 0; w < Words<T, V>::COUNT; ++w) x.word[w] = 0;
        if (!active || bag == ~0u) return;
        u32 won = ~0u;
        if (args.max_indices) {
            won = at<const u32>(args, args.winners_at)[i64(position) * ((args.columns + 31) / 32) + column / 32] >> column % 32;
            if ((won & ((1u << V) - 1)) == 0) return;
        }
        const T* p = reinterpret_cast<const T*>(args.dy) + i64(bag) * args.dy_bag + column * args.dy_column;
        if (V > 1 && args.dy_column == 1) {
            x.load(p);
        } else {
#pragma unroll
            for (int v = 0; v < V; ++v) x.set(v, *p);  // V > 1: dy is constant along columns
        }
        if (args.max_indices) {
#pragma unroll
            for (int v = 0; v < V; ++v) x.set(v, won >> v & 1 ? x.get(v) : T(0));
        }
    }

    // Adds the entries first..end-1, telling of the row of each before it is added.
    template <typename Meet>
    __device__ void add_entries(u32 first, u32 end, Meet meet)
    {
        const Source mine = source(first + lane, first + lane < end);
        const int n = static_cast<int>(end - first);
        for (int j = 0; j < n; j += kFlight) {
            Words<T, V> x[kFlight];
#pragma unroll
            for (int u = 0; u < kFlight; ++u)
                if (j + u < n) load(x[u], __shfl_sync(group, mine.bag, j + u, lanes), __shfl_sync(group, mine.position, j + u, lanes));
#pragma unroll
            for (int u = 0; u < kFlight; ++u) {
                if (j + u >= n) break;
                meet(__shfl_sync(group, mine.row, j + u, lanes));
                const A scale = __shfl_sync(group, mine.scale, j + u, lanes);
                add([&](int v) { return scale * x[u].template value<A>(v); });
            }
        }
    }

    // The same over any number of entries of one row.
    __device__ void add_run(u32 first, u32 end)
    {
        for (u32 k = first; k < end; k += lanes) add_entries(k, min(k + lanes, end), [](u32) {});
    }

    // The sums of chunks of a level lie behind those of smaller ones.
    __device__ void add_chunks(const A* sums, i64 first, i64 end)
    {
        for (i64 k = first; k < end && active; k += kFlight) {
            A x[kFlight][V];
#pragma unroll
            for (int u = 0; u < kFlight; ++u)
#pragma unroll
                for (int v = 0; v < V; ++v) x[u][v] = k + u < end ? sums[(k + u) * args.columns + column + v] : A(0);
#pragma unroll
            for (int u = 0; u < kFlight; ++u)
                if (k + u < end) add([&](int v) { return x[u][v]; });
        }
    }

    __device__ void store_chunk(i64 chunk)
    {
        A* sum = at<A>(args, args.partial_at) + chunk * args.columns + column;
        if (!active) return;
#pragma unroll
        for (int v = 0; v < V; ++v) sum[v] = total[v] + run[v];
    }

    // The sum so far is a row; occurrences: how many entries it has.
    __device__ void store_row(i64 row, i64 occurrences)
    {
        if (!active) return;
        T* p = reinterpret_cast<T*>(args.dweight) + row * args.dweight_row + column * args.dweight_column;
        A sum[V + 1];
#pragma unroll
        for (int v = 0; v < V; ++v) sum[v] = total[v] + run[v];
        if (args.by_frequency && occurrences > 1) {
#pragma unroll
            for (int v = 0; v < V; ++v) sum[v] /= A(occurrences);
        }
        if constexpr (V > 1) {
            Pack<T, V> pack;
#pragma unroll
            for (int v = 0; v < V; v += 2) {
                const A pair[2] = {sum[v], sum[v + 1]};
                narrow(pair, pack.at + v);
            }
            store_wide(p, pack);
        } else {
            *p = static_cast<T>(sum[0]);
        }
    }

    __device__ bool uniform(i64 first, i64 size) const
    {
        return first + size <= args.total && entry(first).row < args.rows && entry(first).row == entry(first + size - 1).row;
    }

    __device__ u32 end_of_row(u32 row, u32 low, u32 high) const
    {
        while (low < high) {
            const u32 middle = (low + high) / 2;
            if (entry(middle).row <= row)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }

    __device__ void rows()
    {
        const u32 all = static_cast<u32>(args.rows);
        u32 row = unit * kGroup, k = 0, end = 0, begun = 0, skipped = all;
        if (row >= all) return;
        const u32 last = min(row + kGroup, all);
        if (args.total) {
            const u32* bounds = at<const u32>(args, args.bounds_at) + unit;
            k = begun = bounds[0], end = bounds[1];
        }
        const auto finish = [&](u32 next, u32 here) {  // stores the rows before the next one
            for (; row < next; ++row, begun = here) {
                if (row != skipped) store_row(row, here - begun);
                reset();
            }
        };
        while (k < end) {
            if (k % kChunk == 0 && k + kChunk <= end && uniform(k, kChunk)) {  // a long row
                const u32 found = entry(k).row;
                finish(found, k);
                skipped = found;
                k = end_of_row(found, k + kChunk, end);
                continue;
            }
            const u32 stop = min(end, (k & -lanes) + lanes);
            u32 here = k;
            add_entries(k, stop, [&](u32 next) { finish(next, here++); });
            k = stop;
        }
        finish(last, end);
    }

    __device__ void smallest_chunk()
    {
        if (!uniform(i64(unit) * kChunk, kChunk)) return;
        add_run(unit * kChunk, (unit + 1) * kChunk);
        store_chunk(unit);
    }

    __device__ void larger_chunk()
    {
        if (!uniform(unit * args.chunk, args.chunk)) return;
        add_chunks(at<const A>(args, args.parts_at), i64(unit) * kChunk, (i64(unit) + 1) * kChunk);
        store_chunk(unit);
    }

    __device__ void long_row()
    {
        const i64 first = i64(unit) * kChunk;
        if (!uniform(first, kChunk)) return;
        const u32 row = entry(first).row;
        if (first > 0 && entry(first - kChunk).row == row) return;  // another chunk of the row comes before
        u32 begin = static_cast<u32>(first);
        while (begin > 0 && entry(begin - 1).row == row) --begin;
        const u32 end = end_of_row(row, first + kChunk, args.total);
        add_run(begin, first);
        i64 here = first, size = kChunk;
        const A* sums = at<const A>(args, args.partial_at);
        i64 level = 1;
        for (; level < args.levels && here + size * kChunk <= end; ++level) {  // up to the largest chunks of the row
            const i64 stop = min((here + size * kChunk - 1) / (size * kChunk) * (size * kChunk), end / size * size);
            add_chunks(sums, here / size, stop / size);
            here = stop;
            sums += args.total / size * args.columns;
            size *= kChunk;
        }
        for (;; --level) {  // and down to the entries behind them
            const i64 stop = max(here, end / size * size);
            add_chunks(sums, here / size, stop / size);
            here = stop;
            if (level == 1) break;
            size /= kChunk;
            sums -= args.total / size * args.columns;
        }
        add_run(here, end);
        store_row(row, end - begin);
    }
};

template <typename T, typename A, int V>
__device__ void rows_and_chunks(const BagArgs& args)
{
    if (blockIdx.x < args.chunk_blocks)
        RowSum<T, A, V>(args, blockIdx.x).smallest_chunk();
    else
        RowSum<T, A, V>(args, blockIdx.x - args.chunk_blocks).rows();
}

// Calls f with V columns for each thread: 16 bytes where the operands allow it, else one.
#define FOR_EITHER_WIDTH(f, T, A, ...)                        \
    do {                                                      \
        if (args.wide)                                        \
            f<T, A, 16 / static_cast<int>(sizeof(T))>(__VA_ARGS__); \
        else                                                  \
            f<T, A, 1>(__VA_ARGS__);                          \
    } while (0)

template <typename T, typename A, int V>
__device__ void chunks(const BagArgs& args) { RowSum<T, A, V>(args, blockIdx.x).larger_chunk(); }

template <typename T, typename A, int V>
__device__ void long_rows(const BagArgs& args) { RowSum<T, A, V>(args, blockIdx.x).long_row(); }
