// How pieces of rows come to shared memory, from there to the threads that own them, and back to memory: by aligned vectors.
#pragma once

#include "scan/row/cluster.cuh"

// Asks for some vectors of each lane, so that what blocks tell each other meanwhile does not come behind all of them. Where not all of
// them exist, for those that do, at once.
template <typename K, typename T>
template <int FIRST, int END>
__device__ void Piece<K, T>::ask(unsigned row)
{
    if (row >= args.strips) return;
    const char *x = begin(args.x, row) + from, *y = begin(args.dy, row) + from;
    const unsigned even = static_cast<unsigned>(__cvta_generic_to_shared(Vectors::across(room, 0))), odd = even ^ 64;
    if (plain()) {
        ask_plain<FIRST, END>(even, odd, x);
        ask_plain<FIRST, END>(even + U * 512, odd + U * 512, y);
    } else if constexpr (FIRST == 0) {
#pragma unroll 1
        for (int u = 0; u < U && u * 32 + lane < count; ++u) {
            const unsigned to = (u % 2 ? odd : even) + u * 512;
            fetch_vector(to, x + u * beside());
            if (!repeats()) fetch_vector(to + U * 512, y + u * beside());
        }
    }
    if constexpr (FIRST == 0 && kBased<K>) {
        const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(&first));
        if (lane == 0) fetch_vector(to, begin(args.x, row) - (backward() ? 16 - sizeof(T) : 0));
    }
}

template <typename K, typename T>
template <int M, int END>
__device__ void Piece<K, T>::ask_plain(unsigned even, unsigned odd, const char* from) const
{
    if constexpr (M < END) {
        fetch_vector<M * 512>(M % 2 ? odd : even, from);
        ask_plain<M + 1, END>(even, odd, from);
    }
}

template <typename K, typename T>
__device__ void Piece<K, T>::read(Vector (&word)[U], uint4* from) const
{
#pragma unroll
    for (int u = 0; u < U; ++u) word[u].load(Vectors::along(from, u));
    flip(word);
}

template <typename K, typename T>
__device__ void Piece<K, T>::repeat(Vector (&word)[U]) const
{
    const T all = *reinterpret_cast<const T*>(begin(args.dy, row));
#pragma unroll
    for (int u = 0; u < U; ++u)
#pragma unroll
        for (int v = 0; v < V; ++v) word[u].set(v, lane * U + u < count ? all : T());
}

// Where x is taken again there are no registers for it meanwhile: it is where dx will be.
template <typename K, typename T>
__device__ void Piece<K, T>::keep(Vector (&word)[U]) const
{
#pragma unroll
    for (int u = 0; u < AGAIN; ++u) word[u].store(Vectors::along(room + 2 * 32 * U, u));
}

template <typename K, typename T>
__device__ void Piece<K, T>::remember(Vector (&word)[U]) const
{
    if constexpr (AGAIN == 0) return renew(word);
    const int own = opaque(lane);
#pragma unroll
    for (int u = 0; u < AGAIN; ++u) word[u].load(Vectors::along(room + 2 * 32 * U, u, own));
}

template <typename K, typename T>
__device__ void Piece<K, T>::write(Vector (&word)[U]) const
{
    uint4* out = room + 2 * 32 * U;
    char* dx = begin(args.dx, row) + from;
    const int own = opaque(lane);  // lest places are kept in registers since they were read from
    flip(word);
#pragma unroll
    for (int u = 0; u < U; ++u) word[u].store(Vectors::along(out, u, own));
    __syncwarp();
#pragma unroll
    for (int u = 0; u < U; ++u) word[u].load(Vectors::across(out, u, own));
    __syncwarp();
    if (plain()) {
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].store(reinterpret_cast<T*>(dx + u * 512));
        return;
    }
#pragma unroll
    for (int u = 0; u < U; ++u)
        if (u * 32 + lane < count) word[u].store(reinterpret_cast<T*>(dx + u * beside()));
}

// Memory's order is scan order backwards.
template <typename K, typename T>
__device__ void Piece<K, T>::flip(Vector (&word)[U]) const
{
    if (!backward()) return;
    __syncwarp();  // lest all of this be predicated
#pragma unroll
    for (int u = 0; u < U; ++u) word[u] = Vectors::flipped(word[u]);
}
