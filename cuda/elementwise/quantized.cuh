// Quantized values of a thread: 8-bit integers, floats of 8 bits, and integers of 4 bits, two of
// which are packed in a byte.
#pragma once

#include "common/vec.cuh"
#include "elementwise/args.gen.cuh"

// Quantized values of V elements in registers: a byte each, or half a byte each if they are packed.
template <int V>
struct Quantized {
    Words<unsigned char, V> byte;

    // A packed value has an address in half bytes: twice that of its byte, plus 1 for the upper
    // half.
    static __device__ bool packed(i64 dtype) { return dtype == I4 || dtype == U4; }

    // Reads V adjacent values from element `first` on.
    __device__ void load(const char* row, i64 first, i64 dtype)
    {
        if (packed(dtype)) {
            const char* p = reinterpret_cast<const char*>((reinterpret_cast<i64>(row) + first) >> 1);
            if constexpr (V == 2)
                byte.word[0] = *reinterpret_cast<const unsigned char*>(p);
            else
                byte.word[0] = *reinterpret_cast<const typename WordOf<V / 2>::type*>(p);
        } else {
            byte.load(reinterpret_cast<const unsigned char*>(row) + first);
        }
    }

    // Reads value v, which is `offset` elements from the start of the row. Values are read in
    // order.
    __device__ void load_one(const char* row, i64 offset, int v, i64 dtype)
    {
        if (packed(dtype)) {
            const i64 at = reinterpret_cast<i64>(row) + offset;
            const unsigned both = *reinterpret_cast<const unsigned char*>(at >> 1), value = both >> (at & 1) * 4 & 15;
            byte.word[0] = v == 0 ? value : byte.word[0] | value << 4 * v;
        } else {
            byte.set(v, *(reinterpret_cast<const unsigned char*>(row) + offset));
        }
    }

    // The values as numbers. A signed integer has its sign bit flipped, which adds 128 or 8 and
    // needs no sign extension.
    template <typename A>
    __device__ void decode(i64 dtype, A (&number)[V])
    {
        if (dtype == E4M3 || dtype == E5M2) {
#pragma unroll
            for (int v = 0; v < V; ++v) number[v] = widen<A>(float8(byte.get(v), dtype));
            return;
        }
        unsigned flip = dtype == I8 ? 0x80 : 0;
        if (packed(dtype)) {
            flip = dtype == I4 ? 8 : 0;
            const unsigned even = byte.word[0] & 0x0f0f0f0f, odd = byte.word[0] >> 4 & 0x0f0f0f0f;
            byte.word[0] = __byte_perm(even, odd, 0x5140);
            if constexpr (V == 8) byte.word[1] = __byte_perm(even, odd, 0x7362);
        }
#pragma unroll
        for (unsigned& word : byte.word) word ^= flip * 0x01010101;
#pragma unroll
        for (int v = 0; v < V; ++v) number[v] = byte.template value<A>(v) - A(flip);
    }

    // A float of 8 bits has the exponent and the fraction of a half: float8_e5m2 is its upper byte,
    // and float8_e4m3fn lacks the upper bit of the exponent, which is a factor of 256.
    static __device__ float float8(unsigned bits, i64 dtype)
    {
        const bool e5m2 = dtype == E5M2;
        const unsigned half = e5m2 ? bits << 8 : (bits & 0x80) << 8 | (bits & 0x7f) << 7;
        const float x = __half2float(__ushort_as_half(static_cast<unsigned short>(half)));
        return e5m2 ? x : (bits & 0x7f) == 0x7f ? __int_as_float(0x7fffffff) : x * 256;
    }
};
