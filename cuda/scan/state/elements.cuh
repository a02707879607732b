// The elements of a thread by index, and reductions over them, two elements at a time if they have
// 16 bits.
#pragma once

#include "common/vec.cuh"

// Elementwise minimum (LEAST) or maximum of two pairs of 16-bit numbers; NaN if either is NaN.
template <typename T, bool LEAST>
__device__ unsigned extremum_of_pairs(unsigned a, unsigned b)
{
    if constexpr (__is_same(T, __half) && LEAST)
        asm("min.NaN.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
    else if constexpr (__is_same(T, __half))
        asm("max.NaN.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
    else if constexpr (LEAST)
        asm("min.NaN.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
    else
        asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
    return a;
}

// Elementwise maximum of `a` and the magnitudes of `b`, pairs of 16-bit numbers; if one is NaN, the
// other.
template <typename T>
__device__ unsigned max_magnitude_of_pairs(unsigned a, unsigned b)
{
    if constexpr (__is_same(T, __half))
        asm("{.reg .b32 m; abs.f16x2 m, %1; max.f16x2 %0, %0, m;}" : "+r"(a) : "r"(b));
    else
        asm("{.reg .b32 m; abs.bf16x2 m, %1; max.bf16x2 %0, %0, m;}" : "+r"(a) : "r"(b));
    return a;
}

// The elements of a thread: of U vectors of N, or (COLUMN) of one column of U words, where each
// word holds N columns of a row.
template <typename A, typename T, int N, int U, bool COLUMN = false>
struct Elements {
    static constexpr int WIDTH = N, COUNT = U;
    static constexpr bool IS_COLUMN = COLUMN;
    using Stored = T;
    const Words<T, N> (&word)[U];
    int column = 0;

    __device__ A operator()(int i) const
    {
        return COLUMN ? word[i].template value<A>(column) : word[i / N].template value<A>(i % N);
    }

    // Whether any element from index `from` on is 0. With COLUMN and 16-bit elements, `from` is 0.
    // In a 16-bit half, adding 0x7fff carries to the highest bit exactly if the other bits are not
    // 0.
    __device__ bool has_zero(int from) const
    {
        if constexpr (sizeof(T) == 2) {
            constexpr int COUNT = Words<T, N>::COUNT;
            unsigned all = ~0u;  // the highest bit of each half is set while no element is 0
#pragma unroll
            for (int i = 0; i < U * COUNT; ++i) {
                const unsigned two = keep_here(word[i / COUNT].word[i % COUNT]) & 0x7fff7fff;
                all &= (two | (COLUMN ? 0 : ~__funnelshift_lc(0, ~0u, max(16 * from - 32 * i, 0)) & 0x7fff7fff)) +
                       0x7fff7fff;
            }
            return COLUMN ? !(all >> (16 * column + 15) & 1) : (all & 0x80008000) != 0x80008000;
        } else {
            bool some = false;
#pragma unroll
            for (int i = 0; i < (COLUMN ? U : N * U); ++i) some = some || (i >= from && (*this)(i) == A(0));
            return some;
        }
    }

    // Returns f(pointer to the first element, stride in elements) on a copy in local memory; for
    // rare paths.
    template <typename F>
    __device__ auto with_local_copy(const F& f) const
    {
        constexpr int COUNT = Words<T, N>::COUNT;
        alignas(16) unsigned kept[U * COUNT];
#pragma unroll
        // keep_here: widened values are not reused for the copy.
        for (int i = 0; i < U * COUNT; ++i) kept[i] = keep_here(word[i / COUNT].word[i % COUNT]);
        return f(reinterpret_cast<const T*>(kept) + column, COLUMN ? 4 * COUNT / static_cast<int>(sizeof(T)) : 1);
    }

    // The minimum (LEAST) or maximum, two elements at a time; NaN if any is NaN. CUT: over elements
    // from index `from` on.
    template <bool LEAST, bool CUT>
    __device__ A extremum(int from) const
    {
        static_assert(sizeof(T) == 2);
        constexpr int COUNT = Words<T, N>::COUNT;
        Words<T, 2> best;
        best.set(0, static_cast<T>(LEAST ? INFINITY : -INFINITY));
        best.set(1, best.get(0));
        const unsigned none = best.word[0];
#pragma unroll
        for (int i = 0; i < U * COUNT; ++i) {
            const unsigned two = word[i / COUNT].word[i % COUNT],
                           kept = CUT ? __funnelshift_lc(0, ~0u, max(16 * from - 32 * i, 0)) : ~0u;
            best.word[0] = extremum_of_pairs<T, LEAST>(best.word[0], two & kept | none & ~kept);
        }
        if (!COLUMN) best.word[0] = extremum_of_pairs<T, LEAST>(best.word[0], best.word[0] >> 16);
        return best.template value<A>(column);
    }

    // Whether the magnitude of any element exceeds the limit. NaN does not; nor does an infinite
    // __half if the limit is at least 65504, the largest __half: the fast path finds it otherwise.
    __device__ bool exceeds(A limit) const
    {
        if (__is_same(T, __half) && limit >= A(65504)) return false;
        if constexpr (sizeof(T) == 2) {
            Words<T, 2> most = {0};
#pragma unroll
            for (int i = 0; i < U * Words<T, N>::COUNT; ++i)
                most.word[0] = max_magnitude_of_pairs<T>(
                    most.word[0], word[i / Words<T, N>::COUNT].word[i % Words<T, N>::COUNT]);
            if (COLUMN) return most.template value<A>(column) > limit;
            return most.template value<A>(0) > limit || most.template value<A>(1) > limit;
        } else {
            bool some = false;
#pragma unroll
            for (int i = 0; i < (COLUMN ? U : N * U); ++i) some = some || fabs((*this)(i)) > limit;
            return some;
        }
    }
};

// Replaces the elements of a thread whose bits are set.
template <typename T, int N, int U>
__device__ void replace_elements(Words<T, N> (&word)[U], unsigned bits, T value)
{
#pragma unroll
    for (int i = 0; i < N * U; ++i)
        if (bits >> i & 1) word[i / N].replace(i % N, value);
}

// Replaces the rows of a thread whose bits are set.
template <typename T, int N, int U>
__device__ void replace_rows(Words<T, N> (&word)[U], unsigned bits, T value)
{
#pragma unroll
    for (int r = 0; r < U; ++r)
#pragma unroll
        for (int v = 0; v < N; ++v)
            if (bits >> r & 1) word[r].replace(v, value);
}

// Whether X gives elements two at a time.
template <typename X>
constexpr bool kIs16Bit = false;
template <typename A, typename T, int N, int U, bool COLUMN>
constexpr bool kIs16Bit<Elements<A, T, N, U, COLUMN>> = sizeof(T) == 2;
