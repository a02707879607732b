// Kernels map and rows of map_reduce.cuh where rows of inner are so short that a part of a warp
// covers one, as for groups of 32 numbers with a scale each.
#pragma once

#include "elementwise/thread_tile.cuh"

// Sums N values of each thread over `lanes` >= N adjacent threads; N is a power of two. Thread x
// gets the sum of value x % N: each of the first log2(N) steps exchanges half of the values, each
// later one doubles the threads of a sum.
template <int N, typename A>
__device__ A sum_lanes(const A (&value)[N], int lanes, int thread, int distance = 1)
{
    if constexpr (N > 1) {
        A half[N / 2];
        const bool upper = thread & distance;
#pragma unroll
        for (int k = 0; k < N / 2; ++k)
            half[k] = (upper ? value[2 * k + 1] : value[2 * k])
                + __shfl_xor_sync(0xffffffff, upper ? value[2 * k] : value[2 * k + 1], distance);
        return sum_lanes(half, lanes, thread, 2 * distance);
    } else {
        A sum = value[0];
        for (; distance < lanes; distance *= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);
        return sum;
    }
}

// `lanes` threads of a warp cover a row. A thread has the same vector of U rows, so that the
// accesses of a warp are adjacent. If rows have one dim, the U rows of a thread are kSmallBlock /
// lanes apart; otherwise they are adjacent along the slowest dim, whose extent is a multiple of U.
// SUMMED: each row is a kept index, of one dim, and has at least U vectors.
template <typename Op, typename T, typename A, bool SUMMED>
__device__ void short_rows(const MapReduceArgs<Op::IN, Op::OUT>& args)
{
    using W = Worker<Op, T, A>;
    constexpr int U = Op::SHORT_UNROLL, SUMS = SUMMED ? W::OUT - Op::FIRST_SUM : 1;  // no array is empty
    const IterSpace& space = args.space;
    const int lanes = static_cast<int>(space.lanes), shift = log2_of(lanes), step = kSmallBlock >> shift,
        x = threadIdx.x & (lanes - 1), y = threadIdx.x >> shift;
    const bool one_dim = SUMMED || space.dims == 1;
    const int along = one_dim ? 1 : static_cast<int>(space.dims), distance = one_dim ? step : 1;
    const i64 block = static_cast<i64>(blockIdx.x) * step, first = one_dim ? block * U + y : (block + y) * U;
    const typename W::Slot slot = {static_cast<i64>(x) * W::V};
    const i64 rows_below = slot.first < space.extent[0] ? space.kept_size - first : 0;
    const i64 left = one_dim ? (rows_below + step - 1) >> log2_of(step) : rows_below;  // for this thread
    const W work(args);
    typename W::Row row = work.first_row();
    work.advance(row, 1, along + 1, one_dim ? first : block + y, one_dim ? 1 : U);
    typename W::template Sides<U> side;
    work.load_sides(row, side, along, distance, left);
    typename W::Loaded loaded[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
        if (u < left) work.template load<true>(row, slot, loaded[u]);
#pragma unroll
        for (int i = 0; i < W::IN; ++i)
            if (!W::is_side(i)) row.in[i] += distance * work.in_step(i, along);
    }
    work.convert_sides(side);
    A sum[SUMS][U] = {};
#pragma unroll
    for (int u = 0; u < U; ++u) {
        const auto sink = [&](int o, int, A y) { sum[SUMMED ? o - Op::FIRST_SUM : 0][u] += y; };
        if (u < left) work.template finish<true>(row, side.common + u, slot, loaded[u], sink);
#pragma unroll
        for (int o = 0; o < W::FULL; ++o) row.out[o] += distance * work.out_step(o, along);
    }
    if constexpr (SUMMED) {
        const i64 mine = first + x * step;  // the row of which this thread stores the sums
#pragma unroll
        for (int s = 0; s < SUMS; ++s) {
            const int o = Op::FIRST_SUM + s;
            const A all = sum_lanes(sum[s], lanes, x);
            A total = all;
#pragma unroll
            for (int u = 0; u < U; ++u)
                if (u == x) total = total_of(work.op, o, side.common[u], all, 0);
            if (x < U && mine < space.kept_size && work.summed(o))
                work.store_sum(o, 0, mine, space.kept_size, 0, total);
        }
    }
}
