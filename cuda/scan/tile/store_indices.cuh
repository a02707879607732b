// The stores of the indices of forward cummax and cummin. The index of an element is the position of
// the last winner in scan order, which is the nearest one from the element on.
#pragma once

#include "scan/state/warp_transpose.cuh"

// The index along the scanned dim of a position.
__device__ inline i64 index_of_position(const ScanArgs& args, i64 position)
{
    return args.flags & kReversed ? args.n - 1 - position : position;
}

// Calls store(e, position of the winner) for the elements e of a warp, adjacent lanes with adjacent
// elements. Lane l owns elements l * I .., with what ThreadScan found; element 0 is at `first`.
template <int I, typename ThreadScan, typename Store>
__device__ void for_each_winner(const ThreadScan& thread, i64 first, const Store& store)
{
    static_assert(I <= 32);
    const int lane = threadIdx.x % 32;
#pragma unroll 4
    for (int j = 0; j < I; ++j) {
        const int e = j * 32 + lane, owner = e / I;
        const unsigned winners = __shfl_sync(0xffffffff, thread.records, owner) >> e % I;
        const i64 entering = __shfl_sync(0xffffffff, thread.entering, owner);
        store(e, winners ? first + e + __ffs(static_cast<int>(winners)) - 1 : entering);
    }
}

// Stores the indices of `count` rows of a column of a thread, the first of them at `position`.
template <typename ThreadScan>
__device__ void store_column_indices(const ScanArgs& args, const ThreadScan& thread, int count, i64* to)
{
#pragma unroll 4
    for (int r = 0; r < count; ++r, to += args.x.step) {
        const unsigned winners = thread.records >> r;
        *to = index_of_position(
            args, winners ? thread.position + r + __ffs(static_cast<int>(winners)) - 1 : thread.entering);
    }
}
