// Segment sum: a sum over sorted entries, which gives a row or a chunk. `lanes` threads share a
// slice of a row, V columns each.
#pragma once

#include "common/divisor.cuh"
#include "embedding/args.cuh"

constexpr int kRun = 8;  // additions of a running sum, at most, before it moves to the next level (blocked summation)

// The kinds of summands.
enum class Kind {
    Plain,   // dy of a bag; a row is their sum
    Scaled,  // dy of a bag times a number; rows may be divided
    Argmax,  // dy of a bag in the columns whose argmax is the position
};

// FLIGHT: loads of dy that a thread has in flight. TABLES: rows may be of several tables.
template <typename T, typename A, int V, Kind KIND, int FLIGHT, bool TABLES>
struct Sum {
    using Element = T;
    using Accumulator = A;
    using Chunks = Sum;  // what sums a chunk
    static constexpr int PART = V > 1 ? 16 / sizeof(A) : 1;  // sums in an access
    static constexpr bool ONLY_ENTRIES = false;  // Update: rows without entries are left alone
    // Most entries are the argmax of no column of a thread.
    static constexpr bool SPARSE = KIND == Kind::Argmax && V > 1 && V <= 4;
    const BagArgs& args;
    const int lanes, lane;  // of the group of threads
    u32 unit, column;       // number of the group's work unit; first column of this thread
    const char* dy;         // of the first bag, from that column on
    bool active;
    A run[V], total[V];

    __device__ explicit Sum(const BagArgs& a) : args(a), lanes(static_cast<int>(a.lanes)),
        lane(threadIdx.x & (lanes - 1)) {}

    // The lanes of the warp that belong to the group.
    __device__ u32 group() const { return lanes == 32 ? ~0u : ((1u << lanes) - 1) << (threadIdx.x % 32 - lane); }

    // The number of groups of threads before this one if its CTA is number `block`.
    __device__ i64 before(i64 block) const { return (block * kBlockThreads + threadIdx.x) >> (__ffs(lanes) - 1); }

    // Takes a slice of one of n units, or nothing if no unit is left. slices: of a unit. Of bags,
    // all units take one slice before any takes the next, so that a slice of dy stays in the cache.
    // Without bags each row of dy is read once, so the slices of a unit are adjacent: whole rows of
    // dy are read, and whole rows of dweight written, at about the same time.
    __device__ bool take(i64 slot, i64 n, i64 slices)
    {
        if (slot >= n * slices) return false;
        if (slices == 1) {
            begin(static_cast<u32>(slot), 0);
            return true;
        }
        const i64 major = slot / (args.bagless ? slices : n);
        const i64 minor = slot - major * (args.bagless ? slices : n);
        begin(static_cast<u32>(args.bagless ? major : minor), static_cast<u32>(args.bagless ? minor : major));
        return true;
    }

    // Takes up a slice of a unit.
    __device__ void begin(u32 number, u32 slice)
    {
        unit = number;
        column = (slice * lanes + lane) * V;
        dy = args.dy + column * args.dy_column * static_cast<i64>(sizeof(T));
        active = column < static_cast<u32>(args.columns);
        reset();
    }

    __device__ u32 slice() const { return column / V >> (__ffs(lanes) - 1); }

    // The groups of several CTAs share n units of so many slices.
    template <typename Work>
    __device__ void share(i64 n, i64 slices, i64 blocks, Work work)
    {
        for (i64 block = blockIdx.x; take(before(block), n, slices); block += blocks) work();
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

    // Settles at multiples of kRun entries, of the n entries from k on, if groups of few lanes take
    // few at a time.
    __device__ void settle_after(u32 k, int n)
    {
        if (lanes >= kRun || (k ^ (k + n)) >= kRun) settle();
    }

    __device__ const Entry& entry(u32 k) const { return at<const Entry>(args, args.from_at)[k]; }

    // The source of a summand. Each thread of a group looks one entry up, and all read it from
    // shared memory.
    struct Source {
        u32 row, bag;  // of several tables, the bag is where its dy begins, in units of args.dy_step
        A scale[KIND == Kind::Scaled];
        u32 argmax_bits[KIND == Kind::Argmax ? V : 0];  // argmax bits of the columns of the slice
        u32 columns[TABLES];  // of the table
    };

    __device__ Source* sources() const
    {
        alignas(16) __shared__ char all[kBlockThreads * sizeof(Source)];
        return reinterpret_cast<Source*>(all) + (threadIdx.x - lane);
    }

    __device__ void look_up(u32 k) const
    {
        Source& s = sources()[lane];
        const Entry e = entry(k);
        s.row = e.row;
        s.bag = e.tag;
        if constexpr (KIND == Kind::Scaled) {
            if (args.positions) s.bag = at<const u32>(args, args.bags_at)[e.tag];
            s.scale[0] = 1;
            if (args.sample_weights) s.scale[0] = sample_weight<T, A>(args, e.tag);
            if (args.mean) s.scale[0] /= A(at<const u32>(args, args.counted_at)[s.bag]);
        }
        if constexpr (KIND == Kind::Argmax) {
            const Entry left = k > 0 ? entry(k - 1) : Entry{~0u, 0};
            // A row that occurs twice in one bag receives its columns once.
            const u32 first_time = left.row == e.row && left.tag == e.tag ? 0 : ~0u;
            const u32 words = (static_cast<u32>(args.columns) + 31) / 32, first = (column - lane * V) / 32;
            const u32* argmax_bits = at<const u32>(args, args.sorted_argmax_at) + i64(k) * words;
            constexpr int BATCH = V > 1 ? V / 2 : 1;  // slices begin at a multiple of BATCH words
#pragma unroll
            for (int w = 0; w < V; w += BATCH) {
                Words<u32, BATCH> some = {};
                const bool there = w * 32 < lanes * V && first + w < words;
                if (there && words % BATCH == 0) some.load(argmax_bits + first + w);
#pragma unroll
                for (int v = 0; v < BATCH; ++v) {
                    if (there && words % BATCH && first + w + v < words) some.word[v] = argmax_bits[first + w + v];
                    s.argmax_bits[w + v] = some.word[v] & first_time;
                }
            }
        }
        if constexpr (TABLES) find_table(s);
    }

    // Finds the table of a source.
    __device__ void find_table(Source& s) const
    {
        s.columns[0] = static_cast<u32>(args.columns);
        if (!args.tables) return;
        const u32 number = s.bag / static_cast<u32>(args.table_bags);
        const Table table = table_at(args, number);
        s.columns[0] = static_cast<u32>(table.columns);
        s.bag = static_cast<u32>(((s.bag - number * args.table_bags) * args.dy_bag + table.column) / V);
    }

    // dy of the bag of a source, from the columns of the thread on.
    __device__ const T* dy_of(u32 bag) const { return reinterpret_cast<const T*>(dy + bag * args.dy_step); }

    // Whether the thread has columns of a source.
    __device__ bool has(const Source& s) const
    {
        if constexpr (TABLES) return column < s.columns[0];
        return active;
    }

    __device__ void load(Words<T, V>& x, u32 bag) const
    {
        const T* from = dy_of(bag);
        if (V > 1 && (KIND == Kind::Plain || args.dy_column == 1)) {
            x.load(from);
        } else {
#pragma unroll
            for (int v = 0; v < V; ++v) x.set(v, *from);  // V > 1: dy is constant along columns
        }
    }

    // Adds the entries k..end-1 in order; calls visit(row, k) before each is added.
    template <typename Visit>
    __device__ void add(u32 k, u32 end, Visit visit)
    {
        for (; k < end; k += lanes) {
            const int n = static_cast<int>(min(static_cast<u32>(lanes), end - k));
            __syncwarp(group());
            if (lane < n) look_up(k + lane);
            __syncwarp(group());
            if constexpr (SPARSE)
                add_argmax(k, n, visit);
            else
                add_all(k, n, visit);
        }
    }

    // Adds n entries whose sources are in shared memory.
    template <typename Visit>
    __device__ void add_all(u32 k, int n, Visit visit)
    {
        const Source* from = sources();
        for (int j = 0; j < n; j += FLIGHT) {
            Words<T, V> x[FLIGHT];
            u32 argmax_bits[FLIGHT];
#pragma unroll
            for (int u = 0; u < FLIGHT; ++u) {
                x[u] = {};
                argmax_bits[u] = j + u < n && has(from[j + u]) ? ~0u : 0;
                if (KIND == Kind::Argmax && argmax_bits[u]) argmax_bits[u] = argmax_of(from[j + u]);
                if (argmax_bits[u]) load(x[u], from[j + u].bag);
            }
#pragma unroll
            for (int u = 0; u < FLIGHT; ++u) {
                if (j + u >= n) break;
                visit(from[j + u].row, k + j + u);
#pragma unroll
                for (int v = 0; v < V; ++v) {
                    const A value = x[u].template value<A>(v);
                    if constexpr (KIND == Kind::Scaled)
                        run[v] += from[j + u].scale[0] * value;
                    else if (KIND == Kind::Plain || argmax_bits[u] >> v & 1)
                        run[v] += value;
                }
            }
            if (FLIGHT > 1)
                settle_after(k, n);
            else if ((k + j + 1) % kRun == 0)
                settle();
        }
    }

    // A bit for each of the thread's columns whose argmax is the entry.
    __device__ u32 argmax_of(const Source& s) const
    {
        return s.argmax_bits[lane * V / 32] >> lane * V % 32 & ((1u << V) - 1);
    }

    // Adds entries if most are the argmax of no column of a thread (argmax_sum.cuh). The places are
    // those of the thread in shared memory, kBlockThreads apart.
    __device__ uint4* places() const;
    template <typename Visit>
    __device__ void add_argmax(u32 k, int n, Visit visit);

    // Hooks of Update: the slices of a unit of rows, the passes over it, and the start of a row.
    __device__ i64 row_slices() const { return args.slices; }
    template <typename Work>
    __device__ void each_slice(Work work) { work(); }
    template <typename Work>
    __device__ void each_pass(Work work) { work(); }
    __device__ void fetch_row(u32) {}

    // Adds entries that are all of one row.
    __device__ void add_run(u32 first, u32 end)
    {
        add(first, end, [](u32, u32) {});
    }

    __device__ void add_chunks(const A* sums, i64 first, i64 end)
    {
        constexpr int BATCH = V > 1 ? 256 / (V * static_cast<int>(sizeof(A))) : 16;  // in 64 registers
        for (i64 k = first; k < end && active; k += BATCH) {
            Pack<A, PART> x[BATCH][V / PART];
#pragma unroll
            for (int u = 0; u < BATCH; ++u)
#pragma unroll
                for (int v = 0; v < V; v += PART) {
                    if (k + u < end)
                        x[u][v / PART] = load_wide<PART>(sums + (k + u) * args.columns + column + v);
                    else
                        x[u][v / PART] = {};
                }
#pragma unroll
            for (int u = 0; u < BATCH; ++u) {
#pragma unroll
                for (int v = 0; v < V; ++v) run[v] += x[u][v / PART].at[v % PART];
                if (u % kRun == kRun - 1) settle();
            }
            settle();
        }
    }

    // The sum so far is that of a chunk; stores it at `sums`.
    __device__ void store_chunk(const A* sums, i64 number)
    {
        settle();
        A* sum = const_cast<A*>(sums) + number * args.columns + column;
        if (!active) return;
#pragma unroll
        for (int v = 0; v < V; v += PART) {
            Pack<A, PART> pack;
            memcpy(&pack, total + v, sizeof pack);
            store_wide(sum + v, pack);
        }
    }

    __device__ T* row_at(u32 row) const
    {
        return reinterpret_cast<T*>(args.dweight) + row * args.dweight_row + column * (V > 1 ? 1 : args.dweight_column);
    }

    // The sum so far is a row: its V columns.
    __device__ void take_row(A (&sum)[V + 1], u32 occurrences) const
    {
#pragma unroll
        for (int v = 0; v < V; ++v) sum[v] = total[v] + run[v];
        if (KIND == Kind::Scaled && args.by_frequency && occurrences > 1) {
            const auto divisor = Divisor<A>::of(A(occurrences));
#pragma unroll
            for (int v = 0; v < V; ++v) sum[v] = divisor.divide(sum[v]);
        }
    }

    // The sum so far is a row; stores it. occurrences: the number of its entries.
    __device__ void store_row(T* p, u32, u32 occurrences)
    {
        if (!active) return;
        A sum[V + 1];
        take_row(sum, occurrences);
        if constexpr (V > 1) {
            const Pack<T, V> pack = narrowed<T, V>(sum);
            uint4 word;
            memcpy(&word, &pack, sizeof word);
            __stcs(reinterpret_cast<uint4*>(p), word);  // streaming store: dy should stay in the cache
        } else {
            *p = static_cast<T>(sum[0]);
        }
    }

    __device__ void store_zeros(T* p) const
    {
        if (!active) return;
        if constexpr (V > 1)
            __stcs(reinterpret_cast<uint4*>(p), uint4{0, 0, 0, 0});
        else
            *p = T(0);
    }
};

// The sums of one table, whose rows are stored.
template <typename T, typename A, int V, Kind KIND, int FLIGHT>
using Gradient = Sum<T, A, V, KIND, FLIGHT, false>;
