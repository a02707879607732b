// Backward of embedding bag: dweight[v] = sum of scale(i) dy[bag(i)] over the positions i that hold
// v. Every row is written once, in an order that follows from the indices, so results are
// deterministic.
#include "embedding/radix_sort.cuh"
#include "embedding/row_bounds.cuh"
#include "embedding/row_sums.cuh"
#include "embedding/single_launch.cuh"

template <typename T, typename A>
__device__ void store_dot(const BagArgs& args, i64 position, A dot)
{
    i64 at = position * args.dsample_column;
    if (args.dsample_width) {
        const u32 row = static_cast<u32>(position) / static_cast<u32>(args.dsample_width);
        at = row * args.dsample_row + (position - row * args.dsample_width) * args.dsample_column;
    }
    if (sizeof(T) != sizeof(float) && args.dsample_single)
        reinterpret_cast<float*>(args.dsample)[at] = static_cast<float>(dot);
    else
        reinterpret_cast<T*>(args.dsample)[at] = static_cast<T>(dot);
}

// dsample[i] = dot(dy[bag(i)], weight[index(i)]). `lanes` threads share kStretch adjacent
// positions: each looks one up, and kFlight are in flight at once.
template <typename T, typename A>
__device__ void sample_weights(const BagArgs& args)
{
    constexpr int kFlight = 2;
    const int lanes = static_cast<int>(args.lanes), lane = threadIdx.x % lanes;
    const u32 group = lanes == 32 ? ~0u : ((1u << lanes) - 1) << (threadIdx.x % 32 - lane);
    const i64 each = kBlockThreads / lanes * kStretch, begin = blockIdx.x * each;  // of a CTA
    const i64 first = begin + threadIdx.x / lanes * kStretch, stop = min(first + kStretch, args.total);
    const i64 end = end_of(args);
    const Range bags = bags_between(args, begin, min(each, args.total - begin));
    for (i64 base = first; base < stop; base += lanes) {
        const i64 own = min(base + lane, stop - 1);
        const u32 own_bag = static_cast<u32>(bag_of(args, own, bags.first, bags.last)),
            own_row = static_cast<u32>(row_of(args, own, own_bag, end));
        const int n = static_cast<int>(min(stop - base, i64(lanes)));
        for (int p = 0; p < n; p += kFlight) {
            const T *dy[kFlight], *weight[kFlight];
            i64 columns[kFlight];  // 0: the position is not counted
            // Blocked summation: 16 additions for each level.
            A run[kFlight] = {}, total[kFlight] = {}, sum[kFlight] = {};
#pragma unroll
            for (int u = 0; u < kFlight; ++u) {
                const u32 row = __shfl_sync(group, own_row, p + u, lanes),
                    bag = __shfl_sync(group, own_bag, p + u, lanes);
                dy[u] = reinterpret_cast<const T*>(args.dy) + bag * args.dy_bag;
                weight[u] = reinterpret_cast<const T*>(args.weight) + row * args.weight_row;
                columns[u] = p + u < n && row < args.rows ? args.columns : 0;
                if (args.tables && columns[u]) {
                    const i64 number = bag / static_cast<u32>(args.table_bags);
                    const Table table = table_at(args, number);
                    columns[u] = table.columns;
                    dy[u] += table.column - number * args.table_bags * args.dy_bag;
                    weight[u] = reinterpret_cast<const T*>(args.weight) + table.element
                        + (row - table.row) * table.columns;
                }
            }
            int added = 0;
            const auto hand_over = [&](int each) {
                ++added;
#pragma unroll
                for (int u = 0; u < kFlight; ++u) {
                    if (added % each == 0) total[u] += run[u], run[u] = 0;
                    if (added % (each * 16) == 0) sum[u] += total[u], total[u] = 0;
                }
            };
            if (args.wide) {
                constexpr int V = 16 / sizeof(T);
                for (i64 column = lane * V; column < args.columns; column += lanes * V) {
                    Words<T, V> x[kFlight], w[kFlight];
#pragma unroll
                    for (int u = 0; u < kFlight; ++u) {
                        if (column >= columns[u]) continue;
                        w[u].load(weight[u] + column);
                        if (args.dy_column) x[u].load(dy[u] + column);
                    }
#pragma unroll
                    for (int u = 0; u < kFlight; ++u) {
                        if (column >= columns[u]) continue;
#pragma unroll
                        for (int v = 0; v < V; ++v)
                            run[u] += (args.dy_column ? x[u].template value<A>(v)
                                       : widen<A>(*dy[u])) * w[u].template value<A>(v);
                    }
                    hand_over(16 / V);
                }
            } else {
                for (i64 column = lane; column < args.columns; column += lanes) {
#pragma unroll
                    for (int u = 0; u < kFlight; ++u)
                        if (column < columns[u])
                            run[u] += widen<A>(dy[u][column * args.dy_column])
                                * widen<A>(weight[u][column * args.weight_column]);
                    hand_over(16);
                }
            }
#pragma unroll
            for (int u = 0; u < kFlight; ++u) {
                A all = total[u] + (run[u] + sum[u]);
                for (int reach = lanes / 2; reach > 0; reach /= 2) all += __shfl_xor_sync(group, all, reach, lanes);
                if (lane == 0 && p + u < n) store_dot<T>(args, base + p + u, all);
            }
        }
    }
}

// Zero-fills in address order, 16 bytes a thread, which is the fastest order. All of dweight, or
// counters.
__device__ inline void clear(const BagArgs& args)
{
    const i64 k = i64(blockIdx.x) * kBlockThreads + threadIdx.x;
    char* to = args.wide ? args.dweight : at<char>(args, args.to_at);
    if (k < args.tiles) reinterpret_cast<uint4*>(to)[k] = uint4{0, 0, 0, 0};
    if (k < args.tail) to[args.tiles * 16 + k] = 0;
}

constexpr u32 kArgmaxColumns = 128;  // columns of several bags that a warp holds at once

// The argmax rows of a bag, from column `base` on.
template <typename I>
__device__ void load_argmax(const BagArgs& args, u32* argmax_rows, u32 bag, u32 base)
{
    const u32 lane = threadIdx.x % 32;
    Table table = {0, 0, 0, 0, args.columns};
    if (args.tables) {
        table = table_at(args, bag / static_cast<u32>(args.table_bags));
        bag %= static_cast<u32>(args.table_bags);
    }
    const I* from = reinterpret_cast<const I*>(args.max_indices) + bag * args.max_bag
        + (table.column + base + lane) * args.max_column;
    i64 index[kArgmaxColumns / 32];
#pragma unroll
    for (u32 w = 0; w < kArgmaxColumns / 32; ++w, from += 32 * args.max_column)
        index[w] = base + w * 32 + lane < table.columns ? *from : -1;
#pragma unroll
    for (u32 w = 0; w < kArgmaxColumns / 32; ++w)
        argmax_rows[w * 32 + lane] = index[w] >> 32 ? ~0u : static_cast<u32>(table.row + index[w]);
}

// For each position, a bit for each column whose argmax is its row. A warp takes 32 adjacent
// positions, one a lane.
__device__ inline void find_argmax(const BagArgs& args)
{
    constexpr u32 kBags = 4;
    __shared__ uint4 argmax_rows[kBlockThreads / 32][kBags][kArgmaxColumns / 4 + 1];  // padded to avoid bank conflicts
    auto& rows = argmax_rows[threadIdx.x / 32];
    const u32 lane = threadIdx.x % 32, words = (static_cast<u32>(args.columns) + 31) / 32;
    const i64 own = i64(blockIdx.x) * kBlockThreads + threadIdx.x, position = min(own, args.total - 1);
    if (own - lane >= args.total || args.bags == 0) return;
    const u32 bag = at<const u32>(args, args.bags_at)[position],
        row = static_cast<u32>(row_of(args, position, bag, end_of(args)));
    const u32 left = __shfl_up_sync(~0u, bag, 1), heads = __ballot_sync(~0u, lane == 0 || left != bag);
    const u32 number = __popc(heads << (31 - lane)) - 1;  // number of the lane's bag in the warp
    for (u32 base = 0; base < args.columns; base += kArgmaxColumns) {
        u32 pending = heads;
        for (u32 first = 0; pending; first += kBags) {
            __syncwarp();
#pragma unroll 1
            for (u32 b = 0; b < kBags && pending; ++b, pending &= pending - 1) {
                const u32 next = __shfl_sync(~0u, bag, __ffs(pending) - 1);
                u32* to = reinterpret_cast<u32*>(rows[b]);
                args.max_wide ? load_argmax<i64>(args, to, next, base) : load_argmax<int>(args, to, next, base);
            }
            __syncwarp();
            if (number - first >= kBags || own >= args.total) continue;
            Pack<u32, kArgmaxColumns / 32> bits = {};
#pragma unroll
            for (u32 q = 0; q < kArgmaxColumns / 4; ++q) {
                const uint4 argmax_bits = rows[number - first][q];
                if (argmax_bits.x == row) bits.at[q / 8] |= 1u << q % 8 * 4;
                if (argmax_bits.y == row) bits.at[q / 8] |= 2u << q % 8 * 4;
                if (argmax_bits.z == row) bits.at[q / 8] |= 4u << q % 8 * 4;
                if (argmax_bits.w == row) bits.at[q / 8] |= 8u << q % 8 * 4;
            }
            u32* to = at<u32>(args, args.argmax_at) + own * words + base / 32;
            if (words % 4 == 0) {
                store_wide(to, bits);
            } else {
#pragma unroll
                for (u32 w = 0; w < kArgmaxColumns / 32; ++w)
                    if (base / 32 + w < words) to[w] = bits.at[w];
            }
        }
    }
}


template <int N>
__device__ void gather_argmax_words(const BagArgs& args, i64 first, i64 words, const u32 (&tag)[kGathered])
{
#pragma unroll 1
    for (i64 w = 0; w < words; w += N) {
        Pack<u32, N> argmax_bits[kGathered];
#pragma unroll
        for (int u = 0; u < kGathered; ++u)
            argmax_bits[u] = load_wide<N>(at<const u32>(args, args.argmax_at) + tag[u] * words + w);
#pragma unroll
        for (int u = 0; u < kGathered; ++u)
            if (first + u * kBlockThreads < args.total)
                store_wide(at<u32>(args, args.sorted_argmax_at) + (first + u * kBlockThreads) * words + w,
                    argmax_bits[u]);
    }
}

// Replaces the positions of sorted entries by their bags, and gathers their argmax bits beside
// them, once for all slices.
__device__ inline void gather_bags(const BagArgs& args)
{
    const i64 first = i64(blockIdx.x) * kGathered * kBlockThreads + threadIdx.x, words = (args.columns + 31) / 32;
    Entry* entries = at<Entry>(args, args.from_at);
    u32 tag[kGathered], bag[kGathered];
    bool there[kGathered];
#pragma unroll
    for (int u = 0; u < kGathered; ++u) {
        there[u] = first + u * kBlockThreads < args.total;
        tag[u] = there[u] ? entries[first + u * kBlockThreads].tag : 0;
    }
#pragma unroll
    for (int u = 0; u < kGathered; ++u) bag[u] = at<const u32>(args, args.bags_at)[tag[u]];
    if (words % 4 == 0)
        gather_argmax_words<4>(args, first, words, tag);
    else
        gather_argmax_words<1>(args, first, words, tag);
#pragma unroll
    for (int u = 0; u < kGathered; ++u)
        if (there[u]) entries[first + u * kBlockThreads].tag = bag[u];
}

template <typename T>
constexpr int kFlight = sizeof(T) == 2 ? 4 : 6;  // so that registers suffice for four CTAs

#define EXPORT_ROWS(name, T, A, family)                                              \
    EXPORT(family##_sorted_##name, 4, BagArgs, sorted<Gradient, T, A, kFlight<T>>(args)) \
    EXPORT(family##_sorted_argmax_##name, 4, BagArgs, sorted_argmax<Gradient, T, A, kFlight<T>>(args)) \
    EXPORT(family##_long_rows_##name, 2, BagArgs, long_rows_of_kind<Gradient, T, A>(args)) \
    EXPORT(family##_single_launch_##name, 2, BagArgs, single_launch<T, A>(args))     \
    EXPORT(family##_sample_weights_##name, 4, BagArgs, sample_weights<T, A>(args))

FOR_EACH_FLOAT(EXPORT_ROWS, embedding_bag_backward)
EXPORT(embedding_bag_backward_clear, 8, BagArgs, clear(args))
EXPORT(embedding_bag_backward_keys, 5, BagArgs, keys(args))
EXPORT(embedding_bag_backward_count, 4, BagArgs, count(args))
EXPORT(embedding_bag_backward_scatter, 5, BagArgs, scatter(args))
EXPORT(embedding_bag_backward_sort, 1, BagArgs, sort(args))
EXPORT(embedding_bag_backward_argmax, 6, BagArgs, find_argmax(args))
EXPORT(embedding_bag_backward_collect, 4, BagArgs, gather_bags(args))
EXPORT(embedding_bag_backward_bounds, 4, BagArgs, bounds(args))
