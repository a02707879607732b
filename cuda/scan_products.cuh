// cumprod:  w = E, c = x, E' = E x
//
// Products go beyond the range of the accumulator between threads. If a row stays within the range of float element by element, the
// product of any of its parts is within that of double; for double it takes a mantissa and an exponent.
#pragma once

#include "scan.cuh"

// 0 * inf = 0: a factor that is exactly 0 cuts infinities, not NaN.
template <typename A>
__device__ A times(A a, A b)
{
    const A p = a * b;
    if (p == p || a != a || b != b) return p;
    return A(0);
}

template <typename A> struct Product;

template <>
struct Product<float> {
    double v;

    static __device__ Product one() { return {1.0}; }
    static __device__ Product zero() { return {0.0}; }
    static __device__ Product of(float x) { return {x}; }
    __device__ float value() const { return static_cast<float>(v); }
};

__device__ inline Product<float> operator*(Product<float> a, Product<float> b) { return {times(a.v, b.v)}; }
__device__ inline Product<float> operator+(Product<float> a, Product<float> b) { return {a.v + b.v}; }

// m * 2^e: m is 0, an infinity, NaN, or in [1, 2). Zeros have a very small exponent and infinities a very large one, so that the larger
// exponent of a sum belongs to the term that matters.
template <>
struct Product<double> {
    double m;
    i64 e;

    static constexpr int kZero = -(1 << 24), kInfinite = 1 << 22, kBias = 1023;

    static __device__ Product one() { return {1.0, 0}; }
    static __device__ Product zero() { return {0.0, kZero}; }
    static __device__ int field(double x) { return __double2hiint(x) >> 20 & 0x7ff; }

    static __device__ __noinline__ Product of(double x, i64 e = 0)
    {
        if (x == 0.0) return {x, kZero};
        int f = field(x);
        if (f == 2 * kBias + 1) return {x, kInfinite};
        if (f == 0) {
            x *= 0x1p64;
            f = field(x) - 64;
        }
        e += f - kBias;
        if (e >= kInfinite) return {copysign(INFINITY, x), kInfinite};
        if (e <= -kInfinite) return {copysign(0.0, x), kZero};
        return {__hiloint2double(__double2hiint(x) & 0x800fffff | 0x3ff00000, __double2loint(x)), e};
    }

    // Rounded once.
    __device__ double value() const
    {
        constexpr i64 most = 2 * (kBias - 1);
        const int k = static_cast<int>(e < -most ? -most : e > most ? most : e), half = k / 2;
        return m * __hiloint2double((half + kBias) << 20, 0) * __hiloint2double((k - half + kBias) << 20, 0);
    }
};

__device__ inline Product<double> operator*(Product<double> a, Product<double> b) { return Product<double>::of(times(a.m, b.m), a.e + b.e); }

__device__ __noinline__ inline Product<double> operator+(Product<double> a, Product<double> b)
{
    // A power of two that is never 0, so that it leaves infinities alone.
    const auto power = [](i64 k) { return __hiloint2double(max(static_cast<int>(k) + 1023, 1) << 20, 0); };
    const i64 e = max(a.e, b.e);
    return Product<double>::of(a.m * power(max(a.e - e, i64(-2000))) + b.m * power(max(b.e - e, i64(-2000))), e);
}

template <typename A>
struct ProductTail {
    Product<A> a, b;
};

template <typename A>
struct Cumprod : SameStates<Product<A>, ProductTail<A>> {
    static constexpr bool HEAD = true, ORDERED = false;
    using Number = A;
    using Value = A;
    using Head = Product<A>;
    using Tail = ProductTail<A>;

    static __device__ Head empty() { return Head::one(); }
    static __device__ Head join(const Head& l, const Head& r) { return l * r; }
    static __device__ Tail nothing() { return {Head::one(), Head::zero()}; }
    static __device__ Tail join(const Tail& l, const Tail& r) { return {l.a * r.a, l.b + l.a * r.b}; }
    static __device__ A pad(const ScanArgs&) { return A(1); }

    template <int I, int N, bool SEG>
    struct Cell {
        Head chunk[I / N];  // the product of N elements since their last start; then the product of all before them
        Head product;       // since the last start

        __device__ void begin(const ScanArgs&) {}
        static __device__ bool begins(unsigned starts, int c) { return SEG && starts >> (c * N) & ((1u << N) - 1); }

        template <typename X>
        __device__ Head head(const X& x, unsigned starts)
        {
#pragma unroll
            for (int c = 0; c < I / N; ++c) {
                Head p = Head::of(x(c * N));
#pragma unroll
                for (int i = c * N + 1; i < c * N + N; ++i) p = SEG && starts >> i & 1 ? Head::of(x(i)) : p * Head::of(x(i));
                chunk[c] = p;
                product = c == 0 || begins(starts, c) ? p : product * p;
            }
            return product;
        }

        template <typename X, typename Y>
        __device__ Tail tail(const X& x, const Y& y, unsigned starts) const
        {
            Head b = Head::zero();
#pragma unroll
            for (int i = I - 1; i >= 0; --i) b = SEG && starts >> i & 1 ? Head::zero() : (Head::of(y(i)) + b) * Head::of(x(i));
            return {product, b};
        }

        template <typename X, typename Y>
        __device__ void enter(const Head& before, const X&, const Y&, unsigned starts)
        {
            Head w = before;
#pragma unroll
            for (int c = 0; c < I / N; ++c) {
                const Head p = chunk[c];
                chunk[c] = w;
                w = begins(starts, c) ? p : w * p;
            }
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(const Tail& after, const X& x, const Y& y, unsigned starts, const Store& store) const
        {
            Head q = after.b;
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                Head w[N];
                A dx[N];
                w[0] = SEG && starts >> (c * N) & 1 ? Head::one() : chunk[c];
#pragma unroll
                for (int i = 1; i < N; ++i) w[i] = SEG && starts >> (c * N + i) & 1 ? Head::one() : w[i - 1] * Head::of(x(c * N + i - 1));
#pragma unroll
                for (int i = N - 1; i >= 0; --i) {
                    const Head r = Head::of(y(c * N + i)) + q;
                    dx[i] = (w[i] * r).value();
                    q = SEG && starts >> (c * N + i) & 1 ? Head::zero() : Head::of(x(c * N + i)) * r;
                }
                store(c, dx);
            }
        }
    };
};
