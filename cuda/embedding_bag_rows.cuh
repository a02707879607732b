// The rows of dweight from the sorted entries. `lanes` threads share a slice of a row, V columns each, and add its entries in order.
//
//     rows      every row once, zeros included, except long ones; beside them, the sums of the smallest chunks
//     chunks    sums of larger chunks from those of smaller ones
//     long_rows the rows that hold a whole chunk, from chunks and from the entries before and behind them
//
// A chunk is kChunk aligned entries, or kChunk aligned chunks, all of one row: so the order of a sum follows from the entries alone.
#pragma once

#include "embedding_bag.cuh"

constexpr int kRun = 8;  // a running sum goes to the next level after so many additions, or before

// What a summand is.
enum class Kind {
    Plain,   // dy of a bag, and a row is their sum
    Scaled,  // dy of a bag times a number; rows may be divided
    Won,     // dy of a bag in the columns that the position won
};

// FLIGHT: vectors of dy that a thread loads before it adds the first.
template <typename T, typename A, int V, Kind KIND, int FLIGHT>
struct RowSum {
    const BagArgs& args;
    const int lanes, lane;  // of the group of threads
    const u32 group;        // the warp's threads that belong to it
    u32 unit, column;       // which part of the work is the group's, and the first of the columns that this thread adds
    bool active;
    A run[V], total[V];

    __device__ explicit RowSum(const BagArgs& a)
        : args(a), lanes(static_cast<int>(a.lanes)), lane(threadIdx.x % lanes),
          group(lanes == 32 ? ~0u : ((1u << lanes) - 1) << (threadIdx.x % 32 - lane))
    {
    }

    // Takes up a slice of a unit.
    __device__ void take(u32 which, u32 slice)
    {
        unit = which;
        column = (slice * lanes + lane) * V;
        active = column < args.columns;
        reset();
    }

    // The groups of some blocks share n units, one slice after the other: that of dy stays in the cache.
    template <typename Work>
    __device__ void share(i64 n, i64 block, i64 blocks, Work work)
    {
        const i64 step = blocks * kBlock / lanes;
        for (i64 slot = (block * kBlock + threadIdx.x) / lanes; slot < n * args.slices; slot += step) {
            const i64 slice = args.slices == 1 ? 0 : slot / n;
            take(static_cast<u32>(slot - slice * n), static_cast<u32>(slice));
            work();
        }
    }

    __device__ void reset()
    {
#pragma unroll
        for (int v = 0; v < V; ++v) run[v] = total[v] = 0;
    }

    __device__ void settle()
    {
#pragma unroll
        for (int v = 0; v < V; ++v) total[v] += run[v], run[v] = 0;
    }

    __device__ const Entry& entry(u32 k) const { return at<const Entry>(args, args.from_at)[k]; }

    template <typename N>
    __device__ N from(N x, int j) const { return __shfl_sync(group, x, j, lanes); }

    // What each lane knows of one entry.
    struct Source {
        u32 row, bag;
        A scale;
        u32 won[KIND == Kind::Won ? V : 1];  // bits of the columns of the slice
    };

    __device__ Source source(u32 k, bool inside) const
    {
        Source s = {~0u, 0, A(1), {}};
        const Entry e = inside ? entry(k) : Entry{~0u, 0};
        s.row = e.row;
        s.bag = e.tag;
        if constexpr (KIND != Kind::Plain) {
            const u32* bags = at<const u32>(args, args.bags_at);
            if (args.positions && inside) s.bag = bags[e.tag];
        }
        if constexpr (KIND == Kind::Scaled) {
            if (args.sample_weights && inside) s.scale = widen<A>(reinterpret_cast<const T*>(args.sample_weights)[e.tag * args.sample_weight_step]);
            if (args.mean && inside) s.scale = A(1) / A(at<const u32>(args, args.counted_at)[s.bag]);
        }
        if constexpr (KIND == Kind::Won) {
            const u32 words = (static_cast<u32>(args.columns) + 31) / 32, first = (column - lane * V) / 32;
            Entry before = {__shfl_up_sync(group, e.row, 1, lanes), __shfl_up_sync(group, s.bag, 1, lanes)};
            if (lane == 0 && inside && k > 0) before = {entry(k - 1).row, at<const u32>(args, args.bags_at)[entry(k - 1).tag]};
            const bool again = k > 0 && before.row == e.row && before.tag == s.bag;  // a row twice in one bag wins its columns once
#pragma unroll
            for (int w = 0; w < V; ++w)
                s.won[w] = inside && !again && first + w < words ? at<const u32>(args, args.winners_at)[i64(e.tag) * words + first + w] : 0;
        }
        return s;
    }

    __device__ const T* dy_of(u32 bag) const
    {
        return reinterpret_cast<const T*>(args.dy) + bag * args.dy_bag + column * (KIND == Kind::Plain && V > 1 ? 1 : args.dy_column);
    }

    // dy of a bag, 0 in columns whose bit is not set.
    __device__ void load(Words<T, V>& x, u32 bag, u32 won) const
    {
        Words<T, V> y = {};
        if (!active || !won) {
            x = y;
        } else if (V > 1 && args.dy_column == 1) {
            x.load(dy_of(bag));
        } else {
#pragma unroll
            for (int v = 0; v < V; ++v) x.set(v, *dy_of(bag));  // V > 1: dy is constant along columns
        }
        if constexpr (KIND == Kind::Won) {
#pragma unroll
            for (int v = 0; v < V; ++v) y.set(v, won >> v & 1 ? x.get(v) : T(0));
            x = y;
        }
    }

    // Adds n entries, at most one for each lane; meet(row, k) is told of the first one, and of each whose row is another.
    template <typename Meet>
    __device__ void add_entries(u32 first, int n, Meet meet)
    {
        const Source mine = source(first + lane, lane < n);
        const u32 left = __shfl_up_sync(group, mine.row, 1, lanes);
        const u32 heads = __ballot_sync(group, lane == 0 || mine.row != left) >> (threadIdx.x % 32 - lane);
        for (int j = 0; j < n; j += FLIGHT) {
            Words<T, V> x[FLIGHT];
#pragma unroll
            for (int u = 0; u < FLIGHT; ++u) {
                const u32 bag = from(mine.bag, j + u);
                if constexpr (KIND == Kind::Plain) {
                    if (active && j + u < n) x[u].load(dy_of(bag));
                } else {
                    u32 won = ~0u;
                    if constexpr (KIND == Kind::Won) {
#pragma unroll
                        for (int w = 0; w < V; ++w) {
                            const u32 word = from(mine.won[w], j + u);
                            if (lane * V / 32 == w) won = word >> lane * V % 32 & ((1u << V) - 1);
                        }
                    }
                    if (j + u < n) load(x[u], bag, won);
                }
            }
#pragma unroll
            for (int u = 0; u < FLIGHT; ++u) {
                if (j + u >= n) break;
                if (heads >> (j + u) & 1) meet(from(mine.row, j + u), first + j + u);
                A scale = 1;
                if constexpr (KIND == Kind::Scaled) scale = from(mine.scale, j + u);
#pragma unroll
                for (int v = 0; v < V; ++v) run[v] += scale * x[u].template value<A>(v);
            }
            settle();
        }
    }

    // The same over any number of entries of one row.
    __device__ void add_run(u32 first, u32 end)
    {
        for (u32 k = first; k < end; k += lanes) add_entries(k, min(static_cast<u32>(lanes), end - k), [](u32, u32) {});
    }

    __device__ void add_chunks(const A* sums, i64 first, i64 end)
    {
        constexpr int MANY = 256 / (V * static_cast<int>(sizeof(A)));  // 64 registers
        for (i64 k = first; k < end && active; k += MANY) {
            A x[MANY][V];
#pragma unroll
            for (int u = 0; u < MANY; ++u)
#pragma unroll
                for (int v = 0; v < V; ++v) x[u][v] = k + u < end ? sums[(k + u) * args.columns + column + v] : A(0);
#pragma unroll
            for (int u = 0; u < MANY; ++u) {
#pragma unroll
                for (int v = 0; v < V; ++v) run[v] += x[u][v];
                if (u % kRun == kRun - 1) settle();
            }
            settle();
        }
    }

    __device__ void store_chunk()
    {
        A* sum = at<A>(args, args.partial_at) + i64(unit) * args.columns + column;
        if (!active) return;
#pragma unroll
        for (int v = 0; v < V; ++v) sum[v] = total[v];
    }

    __device__ T* row_at(u32 row) const
    {
        return reinterpret_cast<T*>(args.dweight) + row * args.dweight_row + column * (V > 1 ? 1 : args.dweight_column);
    }

    // The sum so far is a row; occurrences: how many entries it has.
    __device__ void store_row(T* p, u32 occurrences)
    {
        if (!active) return;
        A sum[V + 1];
#pragma unroll
        for (int v = 0; v < V; ++v) sum[v] = total[v] + run[v];
        if (KIND == Kind::Scaled && args.by_frequency && occurrences > 1) {
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

    __device__ void store_zeros(T* p)
    {
        if (!active) return;
        if constexpr (V > 1)
            *reinterpret_cast<uint4*>(p) = uint4{0, 0, 0, 0};
        else
            *p = T(0);
    }

    // The first entry behind those of a row, all of which are in low..high-1: the lanes search together.
    __device__ u32 end_of_row(u32 row, u32 low, u32 high) const
    {
        const u32 parts = max(lanes, 2);
        while (low < high) {
            const u32 step = (high - low + parts - 1) / parts, last = low + (lane + 1) * step - 1;
            const u32 inside = __popc(__ballot_sync(group, last < high && entry(last).row <= row));
            low += inside * step;
            if (inside < lanes) high = min(high, low + step - 1);
        }
        return low;
    }

    __device__ void rows()
    {
        u32 row = unit * static_cast<u32>(args.group), k = 0, end = 0, begun = 0;
        const u32 last = min(row + static_cast<u32>(args.group), static_cast<u32>(args.rows));
        if (args.total) {
            const u32* bounds = at<const u32>(args, args.bounds_at) + unit;
            k = begun = bounds[0], end = bounds[1];
        }
        T* p = row_at(row);
        const auto finish = [&](u32 next, u32 here) {  // stores the rows before the next one
            if (row == next) return;
            store_row(p, here - begun);
            reset();
            begun = here;
            p += args.dweight_row;
            for (++row; row < next; ++row, p += args.dweight_row) store_zeros(p);
        };
        while (k < end) {
            if (k % kChunk == 0 && k + kChunk <= end && entry(k).row == entry(k + kChunk - 1).row) {  // a long row
                finish(entry(k).row, k);
                k = begun = end_of_row(row, k + kChunk, end);
                reset();
                ++row;
                p += args.dweight_row;
                continue;
            }
            const u32 stop = min(end, (k & -lanes) + lanes);
            add_entries(k, stop - k, finish);
            k = stop;
        }
        if (row < last) finish(last, end);
    }

    __device__ void smallest_chunk()
    {
        add_run(unit * kChunk, (unit + 1) * kChunk);
        store_chunk();
    }

    __device__ void larger_chunk()
    {
        const i64 first = unit * args.chunk;
        if (entry(first).row >= args.rows || entry(first).row != entry(first + args.chunk - 1).row) return;
        add_chunks(at<const A>(args, args.parts_at), i64(unit) * kChunk, (i64(unit) + 1) * kChunk);
        store_chunk();
    }

    // unit is the first chunk of a row. Up to its largest chunks, and down again to the entries behind them.
    __device__ void long_row()
    {
        u32 begin = unit * kChunk;
        const u32 first = begin, row = entry(first).row, end = end_of_row(row, first + kChunk, static_cast<u32>(args.total));
        for (u32 reach = 0; reach < kChunk; reach += lanes) {  // not a whole chunk lies before
            const u32 back = reach + lane + 1;
            begin -= __popc(__ballot_sync(group, back <= first && entry(first - back).row == row));
        }
        add_run(begin, first);
        i64 here = first, size = kChunk, level = 1;
        const A* sums = at<const A>(args, args.partial_at);
        for (; level < args.levels && here + size * kChunk <= end; ++level) {
            const i64 stop = (here + size * kChunk - 1) / (size * kChunk) * (size * kChunk);
            add_chunks(sums, here / size, stop / size);
            here = stop;
            sums += args.total / size * args.columns;
            size *= kChunk;
        }
        for (;; --level) {
            const i64 stop = max(here, end / size * size);
            add_chunks(sums, here / size, stop / size);
            here = stop;
            if (level == 1) break;
            size /= kChunk;
            sums -= args.total / size * args.columns;
        }
        add_run(static_cast<u32>(here), end);
        store_row(row_at(row), end - begin);
    }
};

template <typename T, typename A, int V, Kind KIND>
__device__ void rows_and_chunks(const BagArgs& args)
{
    RowSum<T, A, V, KIND, 4> sum(args);
    const i64 mine = blockIdx.x, others = args.chunk_blocks;
    if (mine < others) {
        const u32* list = at<const u32>(args, args.lists_at);
        sum.share(list[0], mine, others, [&] {
            sum.unit = list[2 + sum.unit];
            sum.smallest_chunk();
        });
    } else {
        sum.share((args.rows + args.group - 1) / args.group, mine - others, gridDim.x - others, [&] { sum.rows(); });
    }
}

template <typename T, typename A, int V>
__device__ void chunks(const BagArgs& args)
{
    RowSum<T, A, V, Kind::Plain, 8> sum(args);
    if (at<const u32>(args, args.lists_at)[0] < kChunk) return;
    sum.share(args.total / args.chunk, blockIdx.x, gridDim.x, [&] { sum.larger_chunk(); });
}

template <typename T, typename A, int V, Kind KIND>
__device__ void long_rows(const BagArgs& args)
{
    RowSum<T, A, V, KIND, 8> sum(args);
    const u32* list = at<const u32>(args, args.lists_at);
    sum.share(list[1], blockIdx.x, gridDim.x, [&] {
        sum.unit = list[2 + args.total / kChunk + sum.unit];
        sum.long_row();
    });
}

// 16 bytes of columns for each thread where the operands allow it, else one column.
template <typename T>
constexpr int kWide = 16 / sizeof(T);
