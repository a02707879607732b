// Shared by all kernels: the dtypes, their conversions, wide accesses to memory, and the exported names.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

using i64 = long long;

// One row per floating dtype: name, storage, accumulator.
#define FOR_EACH_FLOAT(X, ...)             \
    X(f32, float, float, __VA_ARGS__)      \
    X(f64, double, double, __VA_ARGS__)    \
    X(f16, __half, float, __VA_ARGS__)     \
    X(bf16, __nv_bfloat16, float, __VA_ARGS__)

// The row numbers of core/internal/tensor/dtype.go, for operands whose dtype is known at run time only.
enum DType : i64 { F32, F64, F16, BF16, I8, U8, I32, I64 };

// Threads in a block.
constexpr int kBlock = 256;

// EXPORT(family_kernel_dtype, blocks, Args, body): the symbol that the driver looks up, with registers for so many blocks at once on a
// multiprocessor. Its argument is one struct of 8-byte fields.
#define EXPORT(symbol, blocks, Args, ...) EXPORT_THREADS(symbol, kBlock, blocks, Args, __VA_ARGS__)

// The same for blocks of another size.
#define EXPORT_THREADS(symbol, threads, blocks, Args, ...) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) symbol(const __grid_constant__ Args args) { __VA_ARGS__; }

// ---------------------------------------------------------------------------------------------------- conversions

template <typename A, typename T>
__device__ A widen(T x)
{
    if constexpr (sizeof(T) == 2)
        return static_cast<A>(static_cast<float>(x));
    else
        return static_cast<A>(x);
}

// Two values, rounded to nearest even; 16-bit ones in one instruction.
template <typename T, typename A>
__device__ void narrow(const A (&x)[2], T* y)
{
    if constexpr (__is_same(A, float) && __is_same(T, __half)) {
        const __half2 pair = __floats2half2_rn(x[0], x[1]);
        y[0] = pair.x, y[1] = pair.y;
    } else if constexpr (__is_same(A, float) && __is_same(T, __nv_bfloat16)) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x[0], x[1]);
        y[0] = pair.x, y[1] = pair.y;
    } else {
        y[0] = static_cast<T>(x[0]), y[1] = static_cast<T>(x[1]);
    }
}

// Division of many numbers by one, rounded as `/` does, without its branches. From the rounded 1 / b, two steps q += (a - b q) / b make the
// quotient exact to half an ulp: the first brings q within an ulp, the second rounds it rightly (Markstein). Where a step gives NaN, the
// first estimate is already the infinity, zero or NaN that is wanted.
template <typename A>
struct Divisor {
    A b, inverse, lift;  // a tiny b, whose inverse overflows, is lifted by a power of two together with a

    static __device__ Divisor of(A b)
    {
        constexpr A tiny = sizeof(A) == 4 ? 0x1p-100f : 0x1p-1000, up = sizeof(A) == 4 ? 0x1p64f : 0x1p100;
        const A lift = fabs(b) < tiny ? up : A(1);
        return {b * lift, A(1) / (b * lift), lift};
    }

    __device__ A divide(A a) const
    {
        a *= lift;
        const A estimate = a * inverse, near = fma(fma(-b, estimate, a), inverse, estimate), q = fma(fma(-b, near, a), inverse, near);
        return q == q ? q : estimate;
    }
};

// ---------------------------------------------------------------------------------------------------- wide accesses

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

// N adjacent elements in one access; p is a multiple of their size together.
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

// The same N elements in 32-bit words. Where the ways of filling a vector differ, this takes a register for each word, a Pack one for
// each element.
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

    // Element v as a number: bfloat16 is the upper half of a float32, and a byte fits into the fraction of 2^23.
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

    // In order, from element 0.
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

    // Element v alone.
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
            word[0] = all;  // copied, the bytes would be put into a cleared word: whoever loads more would wait for them first
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

// Asks for 16 bytes in shared memory. Offsets are in bytes.
template <int TO = 0, int FROM = TO>
__device__ void fetch_vector(unsigned to, const void* from)
{
    asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16;" ::"r"(to), "l"(from), "n"(TO), "n"(FROM) : "memory");
}

// Brings so many bytes, in whole aligned vectors, to the level-2 cache.
__device__ inline void foresee(const void* from, int bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

// The same number, but computed just here: neither earlier, where it would hold a register all the time, nor again later.
template <typename N>
__device__ N opaque(N x)
{
    if constexpr (__is_same(N, float))
        asm volatile("" : "+f"(x));
    else if constexpr (__is_same(N, double))
        asm volatile("" : "+d"(x));
    else if constexpr (sizeof(N) == 8)
        asm volatile("" : "+l"(x));
    else
        asm volatile("" : "+r"(x));
    return x;
}

// ---------------------------------------------------------------------------------------------------- dtypes known at run time

// The size of an element: two bits of logarithm for each row number.
__device__ inline int size_of(i64 dtype) { return 1 << (0b11'10'00'00'01'01'11'10 >> 2 * dtype & 3); }

// The bits of one element, integers extended to 64 bits. Loading and converting are apart so that a load need not be waited for.
__device__ inline i64 load_bits(const char* p, i64 dtype)
{
    switch (dtype) {
    case F64:
    case I64: return *reinterpret_cast<const i64*>(p);
    case F32:
    case I32: return *reinterpret_cast<const int*>(p);
    case I8: return *reinterpret_cast<const signed char*>(p);
    case U8: return *reinterpret_cast<const unsigned char*>(p);
    default: return *reinterpret_cast<const unsigned short*>(p);
    }
}

template <typename A>
__device__ A from_bits(i64 bits, i64 dtype)
{
    switch (dtype) {
    case F32: return static_cast<A>(__int_as_float(static_cast<int>(bits)));
    case F64: return static_cast<A>(__longlong_as_double(bits));
    case F16: return widen<A>(__ushort_as_half(static_cast<unsigned short>(bits)));
    case BF16: return widen<A>(__ushort_as_bfloat16(static_cast<unsigned short>(bits)));
    default: return static_cast<A>(bits);
    }
}

template <typename A>
__device__ __noinline__ void store_any(char* p, i64 dtype, A x)
{
    switch (dtype) {
    case F32: *reinterpret_cast<float*>(p) = static_cast<float>(x); break;
    case F64: *reinterpret_cast<double*>(p) = static_cast<double>(x); break;
    case F16: *reinterpret_cast<__half*>(p) = __half(x); break;
    case BF16: *reinterpret_cast<__nv_bfloat16*>(p) = __nv_bfloat16(x); break;
    }
}
