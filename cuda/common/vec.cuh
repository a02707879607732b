// Vectors of 2 to 16 adjacent bytes, loaded and stored in one access, as arrays of elements (Pack)
// or of 32-bit words (Words).
#pragma once

#include "common/dtype.cuh"

template <int BYTES> struct WordOf;
template <> struct WordOf<16> { using type = uint4; };
template <> struct WordOf<8> { using type = uint2; };
template <> struct WordOf<4> { using type = unsigned; };
template <> struct WordOf<2> { using type = unsigned short; };

template <int BYTES>
__device__ bool aligned(const void* p)
{
    return (reinterpret_cast<unsigned long long>(p) & (BYTES - 1)) == 0;
}

template <typename T, int N>
struct Pack {
    T at[N];
};

// N numbers, each rounded once.
template <typename T, int N, typename A>
__device__ Pack<T, N> narrowed(const A* x)
{
    Pack<T, N> pack;
#pragma unroll
    for (int v = 0; v < N; v += 2) {
        const A pair[2] = {x[v], x[v + 1]};
        narrow(pair, pack.at + v);
    }
    return pack;
}

// Loads N adjacent elements in one access; p is aligned to their total size.
template <int N, typename T>
__device__ Pack<T, N> load_wide(const T* p)
{
    using Word = typename WordOf<N * sizeof(T)>::type;
    const Word word = *reinterpret_cast<const Word*>(p);
    Pack<T, N> pack;
    memcpy(&pack, &word, sizeof word);
    return pack;
}

template <typename T, int N>
__device__ void store_wide(T* p, const Pack<T, N>& pack)
{
    using Word = typename WordOf<N * sizeof(T)>::type;
    Word word;
    memcpy(&word, &pack, sizeof word);
    *reinterpret_cast<Word*>(p) = word;
}

// N elements in 32-bit words. If vectors are filled in different ways by different branches, Words
// takes a register a word, and Pack a register an element.
template <typename T, int N>
struct Words {
    static constexpr int COUNT = (N * sizeof(T) + 3) / 4, PER_WORD = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
    unsigned word[COUNT];

    __device__ T get(int v) const
    {
        T x;
        if constexpr (sizeof(T) == 8) {
            memcpy(&x, word + 2 * v, 8);
        } else {
            const unsigned bits = word[v / PER_WORD] >> v % PER_WORD * 8 * sizeof(T);
            memcpy(&x, &bits, sizeof(T));
        }
        return x;
    }

    // Element v as a number. A bfloat16 is the upper half of a float32, and a byte fits into the
    // fraction of 2^23.
    template <typename A>
    __device__ A value(int v) const
    {
        if constexpr (__is_same(T, __nv_bfloat16))
            return widen<A>(__uint_as_float(v % 2 == 0 ? word[v / 2] << 16 : word[v / 2] & 0xffff0000));
        else if constexpr (__is_same(T, unsigned char))
            return widen<A>(__uint_as_float(__byte_perm(word[v / 4], 0x4b000000, 0x7540 + v % 4)) - 0x1p23f);
        else
            return widen<A>(get(v));
    }

    // Sets element v. Elements are set in order, from element 0.
    __device__ void set(int v, T x)
    {
        if constexpr (sizeof(T) == 8) {
            memcpy(word + 2 * v, &x, 8);
        } else {
            unsigned bits = 0;
            memcpy(&bits, &x, sizeof(T));
            word[v / PER_WORD] = v % PER_WORD == 0 ? bits : word[v / PER_WORD] | bits << v % PER_WORD * 8 * sizeof(T);
        }
    }

    // Replaces element v and leaves the others.
    __device__ void replace(int v, T x)
    {
        if constexpr (sizeof(T) >= 4) {
            set(v, x);
        } else {
            unsigned bits = 0;
            memcpy(&bits, &x, sizeof(T));
            const int shift = v % PER_WORD * 8 * sizeof(T);
            word[v / PER_WORD] = word[v / PER_WORD] & ~(((1u << 8 * sizeof(T)) - 1) << shift) | bits << shift;
        }
    }

    __device__ void load(const T* p)
    {
        using Word = typename WordOf<N * sizeof(T)>::type;
        const Word all = *reinterpret_cast<const Word*>(p);
        if constexpr (sizeof all < 4)
            word[0] = all;  // a memcpy would insert the bytes into a zeroed word, and later loads would wait for that
        else
            memcpy(word, &all, sizeof all);
    }

    __device__ void store(T* p) const
    {
        using Word = typename WordOf<N * sizeof(T)>::type;
        Word all;
        memcpy(&all, word, sizeof all);
        *reinterpret_cast<Word*>(p) = all;
    }
};
