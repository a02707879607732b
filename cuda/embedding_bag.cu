// dweight[v] = sum of scale(i) dy[bag(i)] over the positions i that hold v; every row is written once, in an order that the indices fix.
#include "embedding_bag_rows.cuh"
#include "embedding_bag_sort.cuh"

// dsample[i] = dot(dy[bag(i)], weight[index(i)]). `lanes` threads share a position; kStretch adjacent ones look up their bags together.
template <typename T, typename A>
__device__ void sample_weights(const BagArgs& args)
{
    const int lanes = static_cast<int>(args.lanes), lane = threadIdx.x % lanes;
    const u32 group = lanes == 32 ? ~0u : ((1u << lanes) - 1) << (threadIdx.x % 32 - lane);
    const i64 first = (i64(blockIdx.x) * kBlock + threadIdx.x) / lanes * kStretch, stop = min(first + kStretch, args.total);
    if (first >= stop) return;
    const i64 end = end_of(args), low = bag_of(args, first, 0, args.bags - 1), high = bag_of(args, stop - 1, low, args.bags - 1);
    for (i64 position = first; position < stop; ++position) {
        const i64 row = row_of(args, position, end), bag = bag_of(args, position, low, high);
        A run = 0, total = 0;
        if (row < args.rows) {
            const T* dy = reinterpret_cast<const T*>(args.dy) + bag * args.dy_bag;
            const T* weight = reinterpret_cast<const T*>(args.weight) + row * args.weight_row;
            int added = 0;
            if (args.wide) {
                constexpr int V = 16 / sizeof(T), RUN = 16;
                for (i64 column = lane * V; column < args.columns; column += lanes * V) {
                    Words<T, V> x, w;
                    w.load(weight + column);
                    if (args.dy_column)
                        x.load(dy + column);
#pragma unroll
                    for (int v = 0; v < V; ++v) run += (args.dy_column ? x.template value<A>(v) : widen<A>(*dy)) * w.template value<A>(v);
                    if (++added % (RUN / V) == 0) total += run, run = 0;
                }
            } else {
                for (i64 column = lane; column < args.columns; column += lanes) {
                    run += widen<A>(dy[column * args.dy_column]) * widen<A>(weight[column * args.weight_column]);
                    if (++added % 16 == 0) total += run, run = 0;
                }
            }
        }
        total += run;
        for (int reach = lanes / 2; reach > 0; reach /= 2) total += __shfl_xor_sync(group, total, reach, lanes);
        if (lane == 0) reinterpret_cast<T*>(args.dsample)[position * args.dsample_step] = static_cast<T>(total);
    }
}

// For each position, a bit for each column whose maximum its row is. A warp for kStretch adjacent positions.
__device__ inline void winners(const BagArgs& args)
{
    const i64 first = (i64(blockIdx.x) * kBlock + threadIdx.x) / 32 * kStretch, stop = min(first + kStretch, args.total);
    if (first >= stop) return;
    const int lane = threadIdx.x % 32;
    const i64 words = (args.columns + 31) / 32, end = end_of(args);
    const i64 low = bag_of(args, first, 0, args.bags - 1), high = bag_of(args, stop - 1, low, args.bags - 1);
    for (i64 position = first; position < stop; ++position) {
        const i64 row = row_of(args, position, end), bag = bag_of(args, position, low, high);
        if (row >= args.rows) continue;
        u32* bits = at<u32>(args, args.winners_at) + position * words;
        for (i64 base = 0; base < words; base += 32) {
            u32 mine = 0;
            for (int w = 0; w < min(words - base, i64(32)); ++w) {
                const i64 column = (base + w) * 32 + lane;
                const bool won = column < args.columns && integer(args.max_indices, bag * args.max_bag + column * args.max_column, args.max_wide) == row;
                const u32 set = __ballot_sync(~0u, won);
                if (lane == w) mine = set;
            }
            if (base + lane < words) bits[base + lane] = mine;
        }
    }
}

// The first offset that is not in order, or else the first index that names no row: {1 or 2 (0: none), position, value}. One block.
__device__ inline void check(const BagArgs& args)
{
    __shared__ unsigned long long first[2];
    if (threadIdx.x < 2) first[threadIdx.x] = ~0ull;
    __syncthreads();
    for (i64 k = threadIdx.x; k < args.bags + args.last; k += kBlock) {
        const i64 offset = offset_of(args, k), before = k ? offset_of(args, k - 1) : 0;
        if (k == 0 ? offset != 0 : offset < before || offset > args.total) atomicMin(&first[0], static_cast<unsigned long long>(k));
    }
    for (i64 k = threadIdx.x; k < args.total; k += kBlock) {
        const i64 row = integer(args.indices, k * args.index_step, args.index_wide);
        if (row < 0 || row >= args.rows) atomicMin(&first[1], static_cast<unsigned long long>(k));
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        i64* status = at<i64>(args, args.status_at);
        status[0] = first[0] != ~0ull ? 1 : first[1] != ~0ull ? 2 : 0;
        status[1] = static_cast<i64>(first[status[0] == 2]);
        status[2] = status[0] == 0 ? 0 : status[0] == 1 ? offset_of(args, status[1]) : integer(args.indices, status[1] * args.index_step, args.index_wide);
    }
}

#define EXPORT_ROWS(name, T, A, family)                                                      \
    EXPORT(family##_sorted_##name, BL, BagArgs, FOR_EVERY_SUMMAND(rows_and_chunks, T, A))     \
    EXPORT(family##_chunks_##name, 2, BagArgs, FOR_EITHER_WIDTH(chunks, T, A))               \
    EXPORT(family##_long_rows_##name, 2, BagArgs, FOR_EITHER_WIDTH(long_rows, T, A))         \
    EXPORT(family##_sample_weights_##name, 2, BagArgs, sample_weights<T, A>(args))

FOR_EACH_FLOAT(EXPORT_ROWS, embedding_bag_backward)
EXPORT(embedding_bag_backward_clear, 1, BagArgs, clear(args))
EXPORT(embedding_bag_backward_keys, 5, BagArgs, keys(args))
EXPORT(embedding_bag_backward_count, 4, BagArgs, count(args))
EXPORT(embedding_bag_backward_scan, 1, BagArgs, scan(args))
EXPORT(embedding_bag_backward_scatter, 5, BagArgs, scatter(args))
EXPORT(embedding_bag_backward_sort, 1, BagArgs, sort(args))
EXPORT(embedding_bag_backward_winners, 4, BagArgs, winners(args))
EXPORT(embedding_bag_backward_bounds, 4, BagArgs, bounds(args))
EXPORT(embedding_bag_backward_check, 1, BagArgs, check(args))
