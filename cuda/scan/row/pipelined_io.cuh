// How tiles of long rows come to shared memory, from there to the threads that own them, and back to memory: by aligned vectors.
#pragma once

#include "scan/row/pipelined.cuh"

// To shared memory, so many elements.
template <typename T>
__device__ void copy_elements(unsigned to, const char* from, int count)
{
#pragma unroll 1
    for (int v = 0; v < count; ++v) static_cast<T*>(__cvta_shared_to_generic(to))[v] = reinterpret_cast<const T*>(from)[v];
}

// Vectors lie where Line has them: lanes meet different banks, both side by side and U apart.
template <typename K, typename T>
__device__ void Long<K, T>::fetch(int t, bool heads, unsigned to) const
{
    const i64 at = static_cast<i64>(t) * (back() ? -OPERAND * 16 : OPERAND * 16);
    const auto operand = [&](const char* from, unsigned to) {
        if (!whole(t, due))
            fetch_some(t, to, from + at);
        else if (back())
            fetch_back(to, from + at);
        else
            fetch_whole(to, from + at);
    };
    if constexpr (X) operand(x, to);
    if (!kFinds<K> && !heads && !repeats()) operand(y, to + (X ? OPERAND * 16 : 0));
    if (kRecorded<K> && threadIdx.x < BITS / 128)
        fetch_vector(to + (OPERAND + static_cast<int>(threadIdx.x) - Memory::place(own())) * 16, records + t * (BITS / 8));
}

template <typename K, typename T>
template <int M>
__device__ void Long<K, T>::fetch_whole(unsigned to, const char* from) const
{
    if constexpr (M < U) {
        fetch_vector<M * kLongThreads * 16>(to, from);
        fetch_whole<M + 1>(to, from);
    }
}

template <typename K, typename T>
__device__ void Long<K, T>::fetch_back(unsigned to, const char* from) const
{
    constexpr int NEXT = kLongThreads * 16;
#pragma unroll 1
    for (int k = 0; k < U; ++k) fetch_vector(to + (U - 1 - k) * NEXT, from + k * NEXT);
}

// A tile that holds elements of other rows, or begins or ends beside memory.
template <typename K, typename T>
__device__ void Long<K, T>::fetch_some(int t, unsigned to, const char* from) const
{
    constexpr int NEXT = kLongThreads * 16;
    const int left = due - t * TILE, ahead = t == 0 ? due - static_cast<int>(args.n) : 0;
    const bool cut = args.flags & kLeads && this->row_of(this->asked) + 1 == args.strips;  // no memory need be behind the last row
    const int low = ahead - (cut && back() ? 0 : V - 1), high = left - (cut && !back() ? V - 1 : 0);
#pragma unroll
    for (int k = 0; k < U; ++k) {
        const int m = back() ? U - 1 - k : k, first = (m * kLongThreads + own()) * V;
        if (first >= low && first < high) fetch_vector(to + m * NEXT, from + k * NEXT);
    }
    const int last = (back() ? ahead : left) & -V, there = back() ? last + V - ahead : left - last;  // the vector that is cut
    if (const int m = last / (kLongThreads * V); cut && there < V && last >= 0 && last < TILE && last / V % kLongThreads == own())
        copy_elements<T>(to + m * NEXT, from + (back() ? U - 1 - m : m) * NEXT, there);
}

// Elements of the thread in a tile that are not of the row become `pad`.
template <typename K, typename T>
__device__ void Long<K, T>::cut(uint4* tile, int t, T pad) const
{
    const int count = rest - t * TILE, ahead = ahead_of(t), own = static_cast<int>(threadIdx.x) * I;
    if (own >= ahead && own + I <= count) return;
    Vector none;
#pragma unroll
    for (int v = 0; v < V; ++v) none.set(v, pad);
#pragma unroll 1
    for (int i = own; i < own + I; i += V) {
        if (i + V <= ahead || i >= count) {
            none.store(&Memory::slot(tile, i));
            continue;
        }
#pragma unroll 1
        for (int v = 0; v < V; ++v)
            if (i + v < ahead || i + v >= count) Memory::slot(tile, back() ? i + V - 1 - v : i + v) = pad;
    }
}

// The elements of the thread in a tile.
template <typename K, typename T>
__device__ void Long<K, T>::read(uint4* tile, Vector (&word)[U], int t, T pad) const
{
    if (!whole(t, rest)) cut(tile, t, pad);
#pragma unroll
    for (int u = 0; u < U; ++u) word[u].load(Memory::along(tile, u, threadIdx.x));
    flip(word);
}

template <typename K, typename T>
__device__ void Long<K, T>::read_dy(uint4* tile, Vector (&word)[U], int t) const
{
    if (repeats()) {
#pragma unroll
        for (int v = 0; v < V; ++v) word[0].set(v, *reinterpret_cast<const T*>(repeated));
#pragma unroll 1
        for (int u = 0; u < U; ++u) word[0].store(Memory::along(tile, u, threadIdx.x));
    }
    read(tile, word, t, T());
}

// Lanes take vectors that lie side by side.
template <typename K, typename T>
__device__ void Long<K, T>::store(uint4* room, Vector (&word)[U], int t) const
{
    flip(word);
#pragma unroll
    for (int u = 0; u < U; ++u) word[u].store(Memory::along(room, u, threadIdx.x));
    __syncwarp();
    const int first = warp * 32 * U + (back() ? 32 * U - 1 - lane : lane), place = Memory::place(first);
    const int count = rest - t * TILE, ahead = ahead_of(t);
    T* to = reinterpret_cast<T*>(dx + static_cast<i64>(t) * (back() ? -OPERAND * 16 : OPERAND * 16));
    const auto own = [&](int u) { return reinterpret_cast<const T*>(room + (place ^ Memory::place(u * 32))); };
    if (warp * 32 * I >= ahead && (warp + 1) * 32 * I <= count) {
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].load(own(u));
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].store(to + u * 32 * V);
        return;
    }
#pragma unroll 1
    for (int u = 0; u < U; ++u, to += 32 * V) {
        const int i = (first ^ u * 32) * V, low = max(ahead - i, 0), high = min(count - i, V);
        if (low == 0 && high == V) {
            word[0].load(own(u));
            word[0].store(to);
            continue;
        }
#pragma unroll 1
        for (int v = low; v < high; ++v) to[back() ? V - 1 - v : v] = own(u)[back() ? V - 1 - v : v];
    }
}
