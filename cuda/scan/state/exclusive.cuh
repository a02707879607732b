// Exclusive scans along rows. They are inclusive ones that read, of the scanned operand, the
// element at the next position. Operands keep their alignment: elements move in registers, except
// that row_resident of cumsum loads elements of 4 and 8 bytes one by one.
//
// With kReadsNext, rows are scanned so. Kernels of columns move pointers instead.
#pragma once

#include "scan/state/prefix_suffix.cuh"

template <typename K>
__device__ bool reads_next(const ScanArgs& args)
{
    return K::HAS_EXCLUSIVE && args.flags & kReadsNext;
}

// Removes the first element of a vector, appends one, and returns the first.
template <typename T, int N>
__device__ T append_to(Words<T, N>& word, T last)
{
    const T first = word.get(0);
    if constexpr (sizeof(T) == 2) {
        Words<T, 1> bits;
        bits.set(0, last);
#pragma unroll
        for (int i = 0; i < N / 2; ++i)
            word.word[i] = __funnelshift_r(word.word[i], i + 1 < N / 2 ? word.word[i + 1] : bits.word[0], 16);
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) word.set(i, i + 1 < N ? word.get(i + 1) : last);
    }
    return first;
}

// Replaces each element of a thread by the next one of its warp. After the last lane comes
// `after_warp`.
template <typename T, int N, int U>
__device__ void take_next(Words<T, N> (&word)[U], T after_warp)
{
    T next = __shfl_down_sync(0xffffffff, word[0].get(0), 1);
    if (threadIdx.x % 32 == 31) next = after_warp;
#pragma unroll
    for (int u = U - 1; u >= 0; --u) next = append_to(word[u], next);
}

// Replaces the elements of a thread from index `from` on, of which few threads have any.
template <typename T, int N, int U>
__device__ void replace_from(Words<T, N> (&word)[U], i64 from, T value)
{
    if (from >= N * U) return;
    const int first = static_cast<int>(from);
#pragma unroll
    for (int i = 0; i < N * U; ++i)
        if (i >= first) word[i / N].replace(i % N, value);
}
