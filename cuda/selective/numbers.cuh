// selective/: the selective scan (Mamba) and its gradient.
//
//     d = softplus(delta + bias)    h[t] = e^{d[t] A} h[t-1] + d[t] B[t] u[t]
//     y[t] = (sum over states of C[t] h[t] + D u[t]) silu(z[t])
//
// This file: numbers of one position, and the access to operands.
#pragma once

#include "common/vec.cuh"
#include "selective/args.gen.cuh"

template <typename A>
constexpr A kLog2e = A(1.4426950408889634);
template <typename A>
constexpr A kLn2 = A(0.6931471805599453);

__device__ inline float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline double exp2_of(double x) { return exp2(x); }

__device__ inline float reciprocal(float x)  // 1 ulp
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline double reciprocal(double x) { return 1 / x; }

// log(1 + e^x) = max(x, 0) + log1p(e^-|x|), with a polynomial for log1p on [0, 1], whose relative
// error is 6e-9.
__device__ inline float softplus(float x)
{
    const float e = expf(-fabsf(x));
    float p = -0.0031639994f;
    p = fmaf(p, e, 0.019487686f);
    p = fmaf(p, e, -0.05626953f);
    p = fmaf(p, e, 0.105329506f);
    p = fmaf(p, e, -0.15263274f);
    p = fmaf(p, e, 0.19661018f);
    p = fmaf(p, e, -0.24951167f);
    p = fmaf(p, e, 0.33329666f);
    p = fmaf(p, e, -0.4999989f);
    return fmaxf(x, 0) + fmaf(e * e, p, e);
}
__device__ inline double softplus(double x) { return x > 40 ? x : log1p(exp(x)); }

template <typename A>
__device__ A sigmoid(A x)
{
    return reciprocal(A(1) + exp2_of(-x * kLog2e<A>));
}

// e^d - 1 for |d| <= 1/16, by the Taylor series. Its relative error is at most 1.3e-7.
__device__ inline float exp_minus_one(float d)
{
    return fmaf(d * d, fmaf(d, fmaf(d, 1 / 24.0f, 1 / 6.0f), 0.5f), d);
}
__device__ inline double exp_minus_one(double d) { return expm1(d); }

// The derivative of x sigmoid(x), which is s (1 + x (1 - s)) with s = sigmoid(x). Around its root,
// -1.278, its factor 1 + x + e^x loses digits. There it is d + e^root (e^d - 1), where d is
// x - root. The root is the sum of two constants, so that d keeps its digits.
template <typename A>
__device__ A silu_slope(A x)
{
    constexpr double kRoot = -1.278464542761073795, kRest = -1.0946994183093437e-16;
    constexpr A root = A(kRoot), rest = A(kRoot - root + kRest), k = A(0.2784645427610738);
    const A e = exp2_of((x < A(0) ? x : -x) * kLog2e<A>), one = reciprocal(A(1) + e);
    const A d = (x - root) - rest;
    const A factor = fabs(d) < A(0.0625) ? fma(k, exp_minus_one(d), d) : (A(1) + x) + e;
    return (x < A(0) ? e * factor : fma(x, e, A(1) + e)) * one * one;
}

// State -> decay state + term. With EXACT a decay of 0 cuts off infinity and NaN, as in the
// sequential recurrence, and a product of decays is 0 only if one of them is.
template <bool EXACT, typename A>
__device__ A step(A decay, A state, A term)
{
    return EXACT && decay == A(0) ? term : fma(decay, state, term);
}
template <bool EXACT, typename A>
__device__ A product(A x, A y)
{
    const A p = x * y;
    if (!EXACT) return p;
    if (x == A(0) || y == A(0)) return A(0);  // even if the other one is infinite or NaN
    constexpr A least = sizeof(A) == 4 ? A(0x1p-149) : A(0x1p-1074);
    return p == A(0) ? least : p;
}

// A sum of many numbers (Kahan): its error does not grow with their count.
template <typename A>
struct CompensatedSum {
    A sum = A(0), lost = A(0);

    __device__ void add(A x)
    {
        const A y = x - lost, next = sum + y, rounded = next - sum - y;
        lost = fabs(rounded) < A(INFINITY) ? rounded : A(0);
        sum = next;
    }
};

// The decays after the `count` positions that exist pass on a state, even if A is infinite.
template <int P, typename A>
__device__ void pass_through(int count, A (&a)[P])
{
#pragma unroll
    for (int k = 0; k < P; ++k)
        if (k >= count) a[k] = A(1);
}

// P adjacent numbers, `count` of which exist; 0 in place of the others.
template <int P, typename T, typename A>
__device__ void load_positions(const T* from, int count, A (&x)[P])
{
    constexpr int V = 16 / sizeof(T) < P ? 16 / sizeof(T) : P;
    if (count >= P && aligned<V * sizeof(T)>(from)) {
#pragma unroll
        for (int i = 0; i < P; i += V) {
            const Pack<T, V> pack = load_wide<V>(from + i);
#pragma unroll
            for (int v = 0; v < V; ++v) x[i + v] = widen<A>(pack.at[v]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < P; ++i) x[i] = i < count ? widen<A>(from[i]) : A(0);
}

template <int P, typename T, typename A>
__device__ void store_positions(T* to, int count, const A (&x)[P])
{
    constexpr int V = 16 / sizeof(T) < P ? 16 / sizeof(T) : P;
    if (count >= P && aligned<V * sizeof(T)>(to)) {
#pragma unroll
        for (int i = 0; i < P; i += V) store_wide(to + i, narrowed<T, V>(x + i));
        return;
    }
#pragma unroll
    for (int i = 0; i < P; ++i)
        if (i < count) to[i] = static_cast<T>(x[i]);
}

// Bound k of packed sequences.
__device__ inline i64 bound_at(const SelectiveArgs& args, i64 k)
{
    return args.bounds_are_wide ? reinterpret_cast<const i64*>(args.bounds)[k * args.bound_step]
                                : reinterpret_cast<const int*>(args.bounds)[k * args.bound_step];
}

// The number of bounds below a position, if they rise.
__device__ inline i64 bounds_below(const SelectiveArgs& args, i64 position)
{
    i64 begin = 0, end = args.bound_count;
    while (begin < end) {
        const i64 middle = begin + (end - begin) / 2;
        if (bound_at(args, middle) < position)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

// The sequence of a position. Wrong bounds give some sequence.
__device__ inline i64 sequence_of(const SelectiveArgs& args, i64 position)
{
    const i64 k = bounds_below(args, position + 1) - 1, last = args.bound_count - 2;
    return k < 0 ? 0 : k > last ? last : k;
}
