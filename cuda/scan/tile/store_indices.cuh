// The stores of the indices of forward cummax and cummin. The index of an element is the position
// of the last record in scan order, which is the nearest one from the element on.
#pragma once

#include "scan/state/warp_transpose.cuh"

// The index along the scanned dim of a position.
__device__ inline i64 index_of_position(const ScanArgs& args, i64 position)
{
    return args.flags & kReversed ? args.n - 1 - position : position;
}

// Calls store(e, position of its record) for the elements e of a warp, adjacent lanes with adjacent
// elements. Lane l owns elements l * I .., with what ThreadScan found; element 0 is at `first`.
template <int I, typename ThreadScan, typename Store>
__device__ void for_each_record(const ThreadScan& thread, i64 first, const Store& store)
{
    static_assert(I <= 32);
    const int lane = threadIdx.x % 32;
#pragma unroll 4
    for (int j = 0; j < I; ++j) {
        const int e = j * 32 + lane, owner = e / I;
        const unsigned records = __shfl_sync(0xffffffff, thread.records, owner) >> e % I;
        const i64 carried_record = __shfl_sync(0xffffffff, thread.carried_record, owner);
        store(e, records ? first + e + __ffs(static_cast<int>(records)) - 1 : carried_record);
    }
}

// Stores the indices of `count` rows of W adjacent columns of a thread, the first `columns` of
// which exist; in one access a row where the layout allows it.
template <int W, typename ThreadScan>
__device__ void store_column_indices(
    const ScanArgs& args, const ThreadScan (&thread)[W], int columns, int count, i64* to)
{
    const i64 column_stride = args.outputs[kIndices].stride[0], step = args.outputs[kIndices].step;
    const bool is_wide = W == 2 && columns == W && column_stride == 1 && step % 2 == 0 && aligned<16>(to);
#pragma unroll 4
    for (int r = 0; r < count; ++r, to += step) {
        i64 index[W];
#pragma unroll
        for (int v = 0; v < W; ++v) {
            const unsigned records = thread[v].records >> r;
            index[v] = thread[v].index_of(
                args,
                records ? thread[v].position + r + __ffs(static_cast<int>(records)) - 1 : thread[v].carried_record);
        }
        if (is_wide) {
            *reinterpret_cast<longlong2*>(to) = make_longlong2(index[0], index[W - 1]);
        } else {
#pragma unroll
            for (int v = 0; v < W; ++v)
                if (v < columns) to[v * column_stride] = index[v];
        }
    }
}
