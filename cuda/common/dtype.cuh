// common/: tools of all kernels. Folders of operations include them; nothing here knows an
// operation.
//
// This file: the dtypes and conversions between them, for dtypes known at compile time and at run
// time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

using i64 = long long;

#include "common/dtypes.gen.cuh"

// ------------------------------------------------------------------------------------- conversions

// Whether T is a float of at most 16 bits, which is converted through float32.
template <typename T> constexpr bool kIsNarrow = false;
#define IS_NARROW(NUMBER, T) template <> constexpr bool kIsNarrow<T> = true;
FOR_EACH_NARROW(IS_NARROW)
#undef IS_NARROW

template <typename A, typename T>
__device__ A widen(T x)
{
    if constexpr (kIsNarrow<T>)
        return static_cast<A>(static_cast<float>(x));
    else
        return static_cast<A>(x);
}

// Rounds two values to nearest even; 16-bit types in one instruction.
template <typename T, typename A>
__device__ void narrow(const A (&x)[2], T* y)
{
    if constexpr (__is_same(A, float) && __is_same(T, __half)) {
        const __half2 pair = __floats2half2_rn(x[0], x[1]);
        y[0] = pair.x;
        y[1] = pair.y;
    } else if constexpr (__is_same(A, float) && __is_same(T, __nv_bfloat16)) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x[0], x[1]);
        y[0] = pair.x;
        y[1] = pair.y;
    } else {
        y[0] = static_cast<T>(x[0]);
        y[1] = static_cast<T>(x[1]);
    }
}

// An optimization barrier: returns x, computed at this point. The compiler can neither hoist the
// computation, which would hold a register, nor repeat it later.
template <typename N>
__device__ N keep_here(N x)
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

// ------------------------------------------------------------------------ dtypes known at run time

// The size of an element in bytes, from a table of 2-bit logarithms.
__device__ inline int size_of(i64 dtype) { return 1 << (kLogSizes >> 2 * dtype & 3); }

// The bits of one element; integers are extended to 64 bits. Loading is apart from converting, so
// that the load need not be waited for.
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
#define STORE(NUMBER, T) \
    case NUMBER: *reinterpret_cast<T*>(p) = static_cast<T>(x); break;
        FOR_EACH_FLOAT_NUMBER(STORE)
#undef STORE
    }
}
