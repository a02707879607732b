// Embedding bag forward, of one table and of many (table-batched embedding): y[b] is the sum, the
// mean or the maximum of the rows of a table that the indices of bag b name. Each bag is reduced in
// the order of its positions, so results are deterministic.
//
// A group of up to 32 threads of a warp takes a slice of the columns of one bag, 16 bytes of
// columns a thread. Each thread looks up one position, and the group shares the rows by shuffles,
// so that kFlight rows are in flight per thread. In a narrower table a group has fewer threads, and
// a warp more bags.
#include "common/divisor.cuh"
#include "embedding/args.cuh"

constexpr int kFlight = kForwardFlight;  // and additions of a running sum (blocked summation)
constexpr u32 kAdded = 16;               // sums of a level that make one of the next
constexpr int kLevels = 7;   // of sums of kFlight * kAdded rows; enough for 2^31 positions
constexpr u32 kNoRow = ~0u;  // the row of a position that does not count

// A slice of the columns of one bag of one table.
struct Slice {
    const char* weight;  // the table, from the first column of the thread on
    i64 row_bytes;       // from row to row
    u32 rows;            // of the table
    u32 bag, column;     // the row of y, and the first column of the thread there
    u32 begin, end;      // positions
    u32 lanes, lane;     // of the group
    bool active;         // the thread has columns

    // The lanes of the warp that belong to the group.
    __device__ u32 threads() const { return lanes == 32 ? ~0u : ((1u << lanes) - 1) << (threadIdx.x % 32 - lane); }
};

// Takes the slice of a thread; false if there is none for it.
template <typename T, int V>
__device__ bool take(const BagForwardArgs& args, Slice& s)
{
    u32 table = 0, block = blockIdx.x, width = static_cast<u32>(args.columns);
    i64 stride = args.weight_column;
    s.weight = args.weight;
    s.rows = static_cast<u32>(args.rows);
    s.row_bytes = args.weight_row;
    s.column = 0;
    if (args.tables) {
        table = block / static_cast<u32>(args.blocks);
        block -= table * static_cast<u32>(args.blocks);
        const i64* own = args.tables + table * 3ll;
        s.column = static_cast<u32>(own[2]);
        width = static_cast<u32>(own[5] - own[2]);
        s.rows = static_cast<u32>(own[3] - own[0]);
        s.weight += own[1] * static_cast<i64>(sizeof(T));
        s.row_bytes = width;
        stride = 1;
    }
    s.row_bytes *= sizeof(T);
    const u32 vectors = (width + V - 1) / V;
    // At least kFlight lanes, which look that many positions up at once.
    const u32 lanes_log = vectors > 16 ? 5 : 32 - __clz(max(vectors, u32(kFlight)) - 1);
    s.lanes = 1u << lanes_log;
    s.lane = threadIdx.x & (s.lanes - 1);
    const u32 slices = (vectors + s.lanes - 1) >> lanes_log;
    // The warps of a CTA have one slice of adjacent bags. The next CTA has the next slice of these,
    // so that whole rows are read at about the same time.
    const u32 first = slices > 1 ? block / slices : block, slice = block - first * slices;
    const i64 bag = (i64(first) * kBlockThreads + threadIdx.x) >> lanes_log;
    if (slices == 0 || bag >= args.bags) return false;
    s.bag = static_cast<u32>(bag);
    const u32 column = (slices > 1 ? slice * s.lanes + s.lane : s.lane) * V;
    s.active = column < width;
    s.weight += column * stride * static_cast<i64>(sizeof(T));
    s.column += column;
    const i64 number = table * args.bags + s.bag;
    const i64 begin = integer(args.offsets, number * args.offset_step, args.offset_wide);
    const i64 end = args.last || s.bag + 1 < args.bags
        ? integer(args.offsets, (number + 1) * args.offset_step, args.offset_wide) : args.total;
    const bool valid = 0 <= begin && begin <= end && end <= args.total;  // else the bag is empty
    s.begin = valid ? static_cast<u32>(begin) : 0;
    s.end = valid ? static_cast<u32>(end) : 0;
    return true;
}

// The row of a position, or kNoRow.
__device__ inline u32 row_at(const BagForwardArgs& args, const Slice& s, i64 position)
{
    const i64 row = integer(args.indices, position * args.index_step, args.index_wide);
    return row < 0 || row >= s.rows || row == args.padding ? kNoRow : static_cast<u32>(row);
}

template <typename T, typename A>
__device__ A sample_weight_at(const BagForwardArgs& args, i64 position)
{
    const i64 at = position * args.sample_weight_step;
    if (sizeof(T) != sizeof(float) && args.sample_weight_single)
        return static_cast<A>(reinterpret_cast<const float*>(args.sample_weights)[at]);
    return widen<A>(reinterpret_cast<const T*>(args.sample_weights)[at]);
}

// Visits the counted positions of a bag in order, and returns their number. visit(x, scale, row)
// has the columns of the thread in x; row() is the row. after() follows each kFlight positions.
template <typename T, typename A, int V, bool WEIGHTED, typename Visit, typename After>
__device__ u32 each_row(const BagForwardArgs& args, const Slice& s, Visit visit, After after)
{
    u32 counted = 0;
#pragma unroll 1
    for (u32 base = s.begin; base < s.end; base += s.lanes) {
        const u32 n = min(s.end - base, s.lanes);
        const u32 own_row = s.lane < n ? row_at(args, s, base + s.lane) : kNoRow;
        A own_scale = 1;
        if (WEIGHTED && s.lane < n) own_scale = sample_weight_at<T, A>(args, base + s.lane);
        // A bit for each lane of the group that holds a row.
        u32 there = __ballot_sync(s.threads(), own_row != kNoRow) >> (threadIdx.x % 32 - s.lane);
        counted += __popc(there);
#pragma unroll 1
        for (u32 j = 0; j < n; j += kFlight, there >>= kFlight) {
            Words<T, V> x[kFlight];
#pragma unroll
            for (int u = 0; u < kFlight; ++u) {
                const u32 row = __shfl_sync(s.threads(), own_row, j + u, s.lanes);
                if (there >> u & s.active) x[u].load(reinterpret_cast<const T*>(s.weight + row * s.row_bytes));
            }
#pragma unroll
            for (int u = 0; u < kFlight; ++u)
                if (there >> u & 1)
                    visit(x[u], WEIGHTED ? __shfl_sync(s.threads(), own_scale, j + u, s.lanes) : A(1),
                        [&] { return __shfl_sync(s.threads(), own_row, j + u, s.lanes); });
            after();
        }
    }
    return counted;
}

template <typename T, typename A, int V>
__device__ void store_columns(const BagForwardArgs& args, const Slice& s, const A* y)
{
    if (!s.active) return;
    T* to = reinterpret_cast<T*>(args.y) + s.bag * args.y_row + s.column * args.y_column;
    if constexpr (V > 1) {
        const Pack<T, V> pack = narrowed<T, V>(y);
        uint4 word;
        memcpy(&word, &pack, sizeof word);
        __stcs(reinterpret_cast<uint4*>(to), word);  // streaming store: the table should stay in the cache
    } else {
        *to = static_cast<T>(y[0]);
    }
}

// The sums of a long bag, one level after the other, in local memory.
template <typename A, int V>
struct Levels {
    A sums[kLevels][V];

    // Adds sum number `count` of the lowest level, counted from 1, and clears it.
    __device__ void push(A (&sum)[V], u32 count)
    {
#pragma unroll 1
        for (int level = 0;; ++level, count /= kAdded) {
            if (count % kAdded != 1)
#pragma unroll
                for (int v = 0; v < V; ++v) sum[v] += sums[level][v];
            if (count % kAdded) {
#pragma unroll
                for (int v = 0; v < V; ++v) sums[level][v] = sum[v], sum[v] = 0;
                return;
            }
        }
    }

    // Adds all sums to `sum`, of which `count` have come to the lowest level.
    __device__ void add_to(A (&sum)[V], u32 count) const
    {
#pragma unroll 1
        for (int level = 0; count; ++level, count /= kAdded)
            if (count % kAdded)
#pragma unroll
                for (int v = 0; v < V; ++v) sum[v] += sums[level][v];
    }
};

template <typename T, typename A, int V, bool WEIGHTED>
__device__ void sum_bag(const BagForwardArgs& args, const Slice& s)
{
    A run[V] = {}, total[V] = {};
    Levels<A, V> levels;
    u32 batches = 0;
    const u32 counted = each_row<T, A, V, WEIGHTED>(args, s,
        [&](const Words<T, V>& x, A scale, auto) {
#pragma unroll
            for (int v = 0; v < V; ++v)
                run[v] += WEIGHTED ? scale * x.template value<A>(v) : x.template value<A>(v);
        },
        [&] {
#pragma unroll
            for (int v = 0; v < V; ++v) total[v] += run[v], run[v] = 0;
            if (++batches % kAdded == 0) levels.push(total, batches / kAdded);
        });
    levels.add_to(total, batches / kAdded);
    if (args.mean && counted > 1) {
        const auto divisor = Divisor<A>::of(A(counted));
#pragma unroll
        for (int v = 0; v < V; ++v) total[v] = divisor.divide(total[v]);
    }
    store_columns<T, A, V>(args, s, total);
}

template <typename T, typename A, int V>
__device__ void sum(const BagForwardArgs& args)
{
    Slice s;
    if (!take<T, V>(args, s)) return;
    if (args.sample_weights)
        sum_bag<T, A, V, true>(args, s);
    else
        sum_bag<T, A, V, false>(args, s);
}

// Stores the argmax rows, N of them in one access.
template <typename I, int N, int V>
__device__ void store_argmax(const BagForwardArgs& args, const Slice& s, const u32 (&argmax)[V])
{
    I* to = reinterpret_cast<I*>(args.max_indices) + s.bag * args.max_row + s.column * args.max_column;
#pragma unroll
    for (int v = 0; v < V; v += N) {
        Pack<I, N> pack;
#pragma unroll
        for (int k = 0; k < N; ++k) pack.at[k] = argmax[v + k] == kNoRow ? I(-1) : static_cast<I>(argmax[v + k]);
        if constexpr (N > 1)
            store_wide(to + v, pack);
        else
            to[v * args.max_column] = pack.at[0];
    }
}

template <typename T, typename A, int V>
__device__ void maximum(const BagForwardArgs& args)
{
    Slice s;
    if (!take<T, V>(args, s)) return;
    A best[V] = {};
    u32 argmax[V];
    bool empty = true;
#pragma unroll
    for (int v = 0; v < V; ++v) argmax[v] = kNoRow;
    each_row<T, A, V, false>(args, s,
        [&](const Words<T, V>& x, A, auto row_of_position) {
            const u32 row = row_of_position();
#pragma unroll
            for (int v = 0; v < V; ++v) {
                const A value = x.template value<A>(v);
                if (!empty && !(value > best[v])) continue;  // a NaN neither wins nor loses
                best[v] = value;
                argmax[v] = row;
            }
            empty = false;
        },
        [] {});
    store_columns<T, A, V>(args, s, best);
    if (!args.max_indices || !s.active) return;
    constexpr int kPairs = V > 1 ? 2 : 1, kFours = V > 4 ? 4 : V;
    if (args.max_wide)
        args.max_vector ? store_argmax<i64, kPairs>(args, s, argmax) : store_argmax<i64, 1>(args, s, argmax);
    else
        args.max_vector ? store_argmax<int, kFours>(args, s, argmax) : store_argmax<int, 1>(args, s, argmax);
}

// 16 bytes of columns for each thread if the operands allow it, else one column.
#define EXPORT_FORWARD(name, T, A, family)                                              \
    EXPORT(family##_sum_##name, 4, BagForwardArgs,                                      \
        args.wide ? sum<T, A, 16 / sizeof(T)>(args) : sum<T, A, 1>(args))               \
    EXPORT(family##_max_##name, 3, BagForwardArgs,                                      \
        args.wide ? maximum<T, A, 16 / sizeof(T)>(args) : maximum<T, A, 1>(args))

FOR_EACH_FLOAT(EXPORT_FORWARD, embedding_bag)
