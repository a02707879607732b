// Loads and stores of row_cluster, in aligned vectors: global memory to shared memory by cp.async,
// a warp transpose to the threads that own the elements, and back.
#pragma once

#include "scan/row/cluster.cuh"

// Prefetches vectors FIRST..END-1 of each lane: in portions, so that states exchanged meanwhile do
// not queue behind the whole row. If not all vectors exist, copies all that do at FIRST == 0.
template <typename K, typename T>
template <int FIRST, int END>
__device__ void ClusterRow<K, T>::prefetch_tile(unsigned row)
{
    if (row >= args.segments) return;
    const char *x = begin(args.inputs[kSaved], row) + lane_offset, *y = begin(args.inputs[kScanned], row) + lane_offset;
    const unsigned even = static_cast<unsigned>(__cvta_generic_to_shared(Vectors::striped(smem, 0))), odd = even ^ 64;
    if (all_whole()) {
        prefetch_whole<FIRST, END>(even, odd, x);
        prefetch_whole<FIRST, END>(even + U * 512, odd + U * 512, y);
    } else if constexpr (FIRST == 0) {
#pragma unroll 1
        for (int u = 0; u < U && u * 32 + lane < vectors; ++u) {
            const unsigned to = (u % 2 ? odd : even) + u * 512;
            cp_async_16(to, x + u * bytes_apart());
            if (!repeats()) cp_async_16(to + U * 512, y + u * bytes_apart());
        }
    }
    if constexpr (FIRST == 0 && K::HAS_BASE) {
        const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(&first_vector));
        if (lane == 0) cp_async_16(to, begin(args.inputs[kSaved], row) - (backward() ? 16 - sizeof(T) : 0));
    }
}

template <typename K, typename T>
template <int M, int END>
__device__ void ClusterRow<K, T>::prefetch_whole(unsigned even, unsigned odd, const char* from) const
{
    if constexpr (M < END) {
        cp_async_16<M * 512>(M % 2 ? odd : even, from);
        prefetch_whole<M + 1, END>(even, odd, from);
    }
}

template <typename K, typename T>
__device__ void ClusterRow<K, T>::read(Vector (&word)[U], uint4* from) const
{
#pragma unroll
    for (int u = 0; u < U; ++u) word[u].load(Vectors::blocked(from, u));
    flip(word);
}

template <typename K, typename T>
__device__ void ClusterRow<K, T>::repeat(Vector (&word)[U]) const
{
    const T all = *reinterpret_cast<const T*>(begin(args.inputs[kScanned], row));
#pragma unroll
    for (int u = 0; u < U; ++u)
#pragma unroll
        for (int v = 0; v < V; ++v) word[u].set(v, lane * U + u < vectors ? all : T());
}

// Keeps x in the shared memory of dx until `finish` recomputes exponentials from it; no registers
// are free.
template <typename K, typename T>
__device__ void ClusterRow<K, T>::stash_x(Vector (&word)[U]) const
{
#pragma unroll
    for (int u = 0; u < RECOMPUTED_VECTORS; ++u) word[u].store(Vectors::blocked(smem + 2 * 32 * U, u));
}

template <typename K, typename T>
__device__ void ClusterRow<K, T>::reload_x(Vector (&word)[U]) const
{
    if constexpr (RECOMPUTED_VECTORS == 0) return rematerialize(word);
    const int own = keep_here(lane);
#pragma unroll
    for (int u = 0; u < RECOMPUTED_VECTORS; ++u) word[u].load(Vectors::blocked(smem + 2 * 32 * U, u, own));
}

template <typename K, typename T>
__device__ void ClusterRow<K, T>::write(Vector (&word)[U]) const
{
    uint4* out = smem + 2 * 32 * U;
    char* dx = begin(args.outputs[kResult], row) + lane_offset;
    // Hides the lane, so that addresses are recomputed instead of being kept in registers.
    const int own = keep_here(lane);
    flip(word);
#pragma unroll
    for (int u = 0; u < U; ++u) word[u].store(Vectors::blocked(out, u, own));
    __syncwarp();
#pragma unroll
    for (int u = 0; u < U; ++u) word[u].load(Vectors::striped(out, u, own));
    __syncwarp();
    if (all_whole()) {
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].store(reinterpret_cast<T*>(dx + u * 512));
        return;
    }
#pragma unroll
    for (int u = 0; u < U; ++u)
        if (u * 32 + lane < vectors) word[u].store(reinterpret_cast<T*>(dx + u * bytes_apart()));
}

// Reverses vectors if memory order is the reverse of scan order.
template <typename K, typename T>
__device__ void ClusterRow<K, T>::flip(Vector (&word)[U]) const
{
    if (!backward()) return;
    __syncwarp();  // keeps the compiler from predicating all of this
#pragma unroll
    for (int u = 0; u < U; ++u) word[u] = Vectors::flipped(word[u]);
}
