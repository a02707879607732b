// Single launch: all of dweight in one launch without a workspace, for few positions. Each CTA
// reads all positions and sorts those that hold one of its args.tiles rows. `lanes` threads share a
// slice of a row and add its entries in order; the entries of a long row are shared by the
// whole CTA.
#pragma once

#include "embedding/argmax_sum.cuh"
#include "embedding/radix_sort.cuh"

constexpr u32 kLongRow = 64;         // entries of a row that the CTA shares, at least
constexpr u32 kNoRow = kSingleLaunchRows;  // of an entry that belongs to another CTA; own rows are counted from 0

// The entries of the CTA's rows, in the order of rows and positions.
template <typename A>
struct OwnEntries {
    Ranks ranks;  // start: where the entries of each row begin. The rest is free once they are sorted
    u32 long_count, long_row[kTile / kLongRow];  // long rows: their number, and the rows, unordered
    u32 counted[kTile / 32];  // a bit for each position that is counted
    u32 bag[kTile];
    A scale[kTile];

    // The number of counted positions of a bag.
    __device__ u32 count_of(const BagArgs& args, u32 b) const
    {
        const auto clip = [&](i64 position) { return static_cast<u32>(min(max(position, i64(0)), args.total)); };
        const u32 begin = clip(offset_of(args, b)), end = b + 1 < args.bags ? clip(offset_of(args, b + 1))
            : static_cast<u32>(args.total);
        u32 count = 0;
#pragma unroll 1
        for (u32 word = begin / 32; word * 32 < end; ++word) {
            u32 bits = counted[word];
            if (word == begin / 32) bits &= ~0u << begin % 32;
            if (end - word * 32 < 32) bits &= (1u << end % 32) - 1;
            count += __popc(bits);
        }
        return count;
    }

    template <typename T>
    __device__ void sort(const BagArgs& args, u32 first_row)
    {
        const u32 n = static_cast<u32>(args.total);
        u32 row[kItems], its_bag[kItems], place[kItems];
        read_items(args, 0, n, row, its_bag);
#pragma unroll
        for (int j = 0; j < kItems; ++j) {
            const u32 counts = __ballot_sync(~0u, item(j) < n && row[j] < args.rows);
            if (threadIdx.x % 32 == 0) counted[item(j) / 32] = counts;
            row[j] = row[j] < args.rows && row[j] - first_row < static_cast<u32>(args.tiles) ? row[j] - first_row
                : kNoRow;
        }
        if (threadIdx.x == 0) long_count = 0;
        const u32 count = rank(ranks, n, place, [&](int j) { return row[j]; });
        if (count >= kLongRow && threadIdx.x != kNoRow) long_row[atomicAdd(&long_count, 1)] = threadIdx.x;
#pragma unroll
        for (int j = 0; j < kItems; ++j) {
            if (item(j) >= n || row[j] == kNoRow) continue;
            A factor = 1;
            if (args.sample_weights) factor = sample_weight<T, A>(args, item(j));
            bag[place[j]] = its_bag[j];
            scale[place[j]] = factor;
        }
        __syncthreads();
        if (!args.mean) return;
        for (u32 k = threadIdx.x; k < ranks.start[kNoRow]; k += kBlockThreads)
            scale[k] /= A(max(count_of(args, bag[k]), 1u));
        __syncthreads();
    }
};

// Argmax bits: for V columns of a bag, whether the row is their argmax.
template <int V>
__device__ __noinline__ u32 argmax_bits(const BagArgs& args, u32 row, u32 bag, u32 column)
{
    u32 bits = 0;
#pragma unroll
    for (int v = 0; v < V; ++v) {
        const i64 argmax_row = integer(args.max_indices, bag * args.max_bag + (column + v) * args.max_column,
                                       args.max_wide);
        bits |= static_cast<u32>(argmax_row == row) << v;
    }
    return bits;
}

template <typename T, typename A, int V>
struct SingleLaunchSum : Gradient<T, A, V, Kind::Scaled, kRun> {
    using Base = Gradient<T, A, V, Kind::Scaled, kRun>;
    using Base::Base, Base::args, Base::lanes, Base::lane, Base::column, Base::active, Base::run, Base::total;
    using Base::begin, Base::settle, Base::load, Base::row_at, Base::store_row;

    // Adds the entries k..end-1 of a row that begins with entry `first`. A second occurrence of the
    // row in one bag adds nothing.
    __device__ void add(const OwnEntries<A>& own, u32 row, u32 first, u32 k, u32 end)
    {
#pragma unroll 1
        for (; k < end && active; k += kRun) {
            Words<T, V> x[kRun];
            u32 bits[kRun];
#pragma unroll
            for (int u = 0; u < kRun; ++u) {
                bits[u] = k + u < end ? ~0u : 0;
                if (!bits[u]) continue;
                const u32 bag = own.bag[k + u];
                load(x[u], bag);
                if (args.max_indices)
                    bits[u] = k + u > first && own.bag[k + u - 1] == bag ? 0 : argmax_bits<V>(args, row, bag, column);
            }
#pragma unroll
            for (int u = 0; u < kRun; ++u) {
                const A factor = bits[u] ? own.scale[k + u] : A(0);
#pragma unroll
                for (int v = 0; v < V; ++v)
                    if (bits[u] >> v & 1) run[v] += factor * x[u].template value<A>(v);
            }
            settle();
        }
    }

    // Combines the sums of the groups of the CTA for a row, in the first group; false in the
    // others.
    __device__ bool gather(OwnEntries<A>& own)
    {
        static_assert(sizeof(Ranks::seen) >= sizeof(A) * V * kBlockThreads, "room for the sums");
        A* sums = reinterpret_cast<A*>(own.ranks.seen) + threadIdx.x;
#pragma unroll
        for (int v = 0; v < V; ++v) sums[v * kBlockThreads] = total[v];
        for (int half = kBlockThreads / 2; half >= lanes; half /= 2) {
            __syncthreads();
            if (static_cast<int>(threadIdx.x) >= half) continue;
#pragma unroll
            for (int v = 0; v < V; ++v) sums[v * kBlockThreads] = total[v] += sums[v * kBlockThreads + half];
        }
        __syncthreads();
        return static_cast<int>(threadIdx.x) < lanes;
    }

    // Every row of the CTA once: groups take one row each, then all groups of the CTA share each
    // long row.
    __device__ void rows(OwnEntries<A>& own, u32 first_row)
    {
        const u32 groups = kBlockThreads / lanes, group = threadIdx.x / lanes;
#pragma unroll 1
        for (bool by_cta : {false, true}) {
            const u32 rows = by_cta ? own.long_count : min(static_cast<u32>(args.tiles),
                static_cast<u32>(args.rows) - first_row);
#pragma unroll 1
            for (u32 slot = by_cta ? 0 : group; slot < rows * static_cast<u32>(args.slices); slot += by_cta ? 1
                 : groups) {
                const u32 slice = slot / rows, row = by_cta ? own.long_row[slot - slice * rows] : slot - slice * rows;
                const u32 first = own.ranks.start[row], end = own.ranks.start[row + 1], n = end - first;
                if ((n >= kLongRow) != by_cta) continue;
                const u32 each = by_cta ? (n + groups - 1) / groups : n, from = by_cta
                    ? min(first + group * each, end) : first;
                begin(row, slice);
                add(own, first_row + row, first, from, min(from + each, end));
                if (!by_cta || gather(own)) store_row(row_at(first_row + row), row, n);
            }
        }
    }
};

template <typename T, typename A>
__device__ void single_launch(const BagArgs& args)
{
    __shared__ OwnEntries<A> own;
    const u32 first_row = blockIdx.x * static_cast<u32>(args.tiles);
    own.template sort<T>(args, first_row);
    if (args.wide)
        SingleLaunchSum<T, A, 16 / sizeof(T)>(args).rows(own, first_row);
    else
        SingleLaunchSum<T, A, 1>(args).rows(own, first_row);
}
