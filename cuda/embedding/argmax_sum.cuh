// Segment sums of max mode, in which most entries are the argmax of no column of a thread: only the
// others are loaded, as many at once as the thread has places in shared memory.
#pragma once

#include "common/async_copy.cuh"
#include "embedding/segment_sum.cuh"

constexpr int kStagedArgmax = 6;  // places of a thread

// Outside of add_argmax, of which each Visit would have shared memory of its own.
template <typename T, typename A, int V, Kind KIND, int FLIGHT, bool TABLES>
__device__ uint4* Sum<T, A, V, KIND, FLIGHT, TABLES>::places() const
{
    __shared__ uint4 all[kStagedArgmax * kBlockThreads];
    return all + threadIdx.x;
}

template <typename T, typename A, int V, Kind KIND, int FLIGHT, bool TABLES>
template <typename Visit>
__device__ void Sum<T, A, V, KIND, FLIGHT, TABLES>::add_argmax(u32 k, int n, Visit visit)
{
    const Source* from = keep_here(sources());
    __builtin_assume(__isShared(from));  // keeps its address in a register
    u32 mine = 0;                        // a bit for each entry with argmax bits
    for (int j = 0; j < n; ++j) mine |= static_cast<u32>(argmax_of(from[j]) != 0) << j;
    for (int j = 0; j < n;) {
        u32 pending = mine & ~0u << j;
        uint4* place = places();
        for (int staged = 0; pending && staged < kStagedArgmax;
             ++staged, pending &= pending - 1, place += kBlockThreads) {
            const u32 bag = from[__ffs(pending) - 1].bag;
            if (args.dy_column == 1) {
                cp_async_16(static_cast<u32>(__cvta_generic_to_shared(place)), dy_of(bag));
            } else {
                Words<T, V> x;
                load(x, bag);
                x.store(reinterpret_cast<T*>(place));
            }
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
        const int stop = __reduce_min_sync(group(), pending ? __ffs(pending) - 1 : n);
        place = places();
        for (; j < stop; ++j) {
            visit(from[j].row, k + j);
            if (!(mine >> j & 1)) continue;
            const u32 argmax_bits = argmax_of(from[j]);
            Words<T, V> x;
            x.load(reinterpret_cast<const T*>(place));
            place += kBlockThreads;
#pragma unroll
            for (int v = 0; v < V; ++v)
                if (argmax_bits >> v & 1) run[v] += x.template value<A>(v);
        }
        settle_after(k, n);
    }
}
