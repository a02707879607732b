// Exclusive scans along rows. They are inclusive ones that read, of the scanned operand, the
// element at the next position. Operands keep their alignment: elements move in registers.
//
// With kReadsNext, rows are scanned so. Kernels of columns move pointers instead.
#pragma once

#include "scan/state/prefix_suffix.cuh"

template <typename K>
__device__ bool reads_next(const ScanArgs& args)
{
    return K::HAS_EXCLUSIVE && args.flags & kReadsNext;
}

// Removes the first element of a vector and appends one.
template <typename T, int N>
__device__ void append_to(Words<T, N>& word, Words<T, 1> last)
{
    if constexpr (sizeof(T) == 2) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i)
            word.word[i] = __funnelshift_r(word.word[i], i + 1 < N / 2 ? word.word[i + 1] : last.word[0], 16);
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) word.set(i, i + 1 < N ? word.get(i + 1) : last.get(0));
    }
}

template <typename T, int N>
__device__ Words<T, 1> first_of(const Words<T, N>& word)
{
    Words<T, 1> first;
    first.set(0, word.get(0));
    return first;
}

// Replaces each element of a thread by the next one of its warp. After the last lane comes
// `after_warp`.
template <typename T, int N, int U>
__device__ void take_next(Words<T, N> (&word)[U], T after_warp)
{
    Words<T, 1> next = shuffle_down(first_of(word[0]), 1);
    if (threadIdx.x % 32 == 31) next.set(0, after_warp);
#pragma unroll
    for (int u = U - 1; u >= 0; --u) {
        const Words<T, 1> first = first_of(word[u]);
        append_to(word[u], next);
        next = first;
    }
}

// Replaces the elements of a thread from index `from` on.
template <typename T, int N, int U>
__device__ void replace_from(Words<T, N> (&word)[U], i64 from, T value)
{
#pragma unroll
    for (int i = 0; i < N * U; ++i)
        if (i >= from) word[i / N].replace(i % N, value);
}
