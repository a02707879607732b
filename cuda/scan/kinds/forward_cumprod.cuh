// cumprod as a forward scan. Products between threads have a mantissa and an exponent, so that a
// product that leaves the range of the accumulator and comes back is right again. Within a thread
// they are plain numbers, unless one of them comes near the ends of the range.
#pragma once

#include "scan/kinds/cumextremum.cuh"
#include "scan/kinds/cumprod_fast.cuh"
#include "scan/kinds/forward.cuh"

// A product (m + rest) 2^e with 1 <= |m| < 2, where rest is the rounding error of m; or m itself if
// m is 0, infinite or NaN. Exponents saturate at 2^30, which takes millions of factors at an end of
// the range.
template <typename A>
struct WideProduct {
    static constexpr int kSubnormalShift = sizeof(A) == 4 ? 64 : 512, kMost = 1 << 30;
    A m;
    float rest;
    int e;

    static __device__ WideProduct identity() { return {A(1), 0.0f, 0}; }

    // Of any number.
    static __device__ WideProduct of(A x)
    {
        const bool small = exponent_of(x) == exponent_of(A(0));
        if (small) x *= power_of_two<A>(kSubnormalShift);
        if (!(fabs(x) > A(0) && fabs(x) < A(INFINITY))) return {x, 0.0f, 0};
        return {mantissa_of(x), 0.0f, exponent_of(x) - (small ? kSubnormalShift : 0)};
    }

    // Of 0, or of a number far from the ends of the range, and its rounding error.
    static __device__ WideProduct of(A x, A error)
    {
        if (x == A(0)) return {x, 0.0f, 0};
        const int e = exponent_of(x);
        return {mantissa_of(x), static_cast<float>(error * power_of_two<A>(-e)), e};
    }

    __device__ bool is_regular() const { return fabs(m) >= A(1) && fabs(m) < A(2); }
    __device__ A value() const { return is_regular() ? scaled(m + rest, min(e, sizeof(A) == 4 ? 254 : 2046)) : m; }

    __device__ WideProduct operator*(const WideProduct& r) const
    {
        const A p = m * r.m, error = fma(m, A(r.rest), fma(A(rest), r.m, fma(m, r.m, -p)));
        WideProduct all = {p, static_cast<float>(error), min(max(e + r.e, -kMost), kMost)};
        if (fabs(p) >= A(2)) all.m *= A(0.5), all.rest *= 0.5f, ++all.e;
        if (!(fabs(p) < A(INFINITY))) all.m = times(m, r.m), all.rest = 0.0f;  // 0 times infinity is 0
        return all;
    }
};

// The products of n elements of a thread, from the last one down, given the product before them.
// Stores them unless `to` is null, and returns the last one.
template <typename A, typename T>
__device__ __noinline__ WideProduct<A> product_scan(
    WideProduct<A> all, const T* x, int stride, A* to, int n, unsigned segment_heads)
{
#pragma unroll 1
    for (int i = n - 1; i >= 0; --i) {
        all = all * WideProduct<A>::of(widen<A>(x[i * stride]));
        if (to) to[i] = all.value();
        if (segment_heads >> i & 1) all = WideProduct<A>::identity();
    }
    return all;
}

// Whether the products of n elements of a thread stay within limits, or are 0 because an element
// is.
template <typename A, typename T>
__device__ __noinline__ bool products_within(A least, A most, const T* x, int stride, int n, unsigned segment_heads)
{
    A p = A(1);
    bool all = true;
#pragma unroll 1
    for (int i = n - 1; i >= 0 && all; --i) {
        const A one = widen<A>(x[i * stride]), next = p * one;
        all = (fabs(next) >= least && fabs(next) <= most) || (next == A(0) && (one == A(0) || p == A(0)));
        p = segment_heads >> i & 1 ? A(1) : next;
    }
    return all;
}

template <typename A>
struct ForwardCumprod : ForwardKind<A, WideProduct<A>> {
    static constexpr bool KEEPS_ELEMENTS = true, STRIPED_ROWS = false, HAS_EXCLUSIVE = true;
    using Tuning = ForwardCumprodTuning;
    using Suffix = WideProduct<A>;

    static __device__ Suffix combine(const Suffix& l, const Suffix& r) { return r * l; }
    template <typename T>
    static __device__ T pad_y(const ScanArgs&)
    {
        return static_cast<T>(1);
    }

    template <int I, int N, bool SEG>
    struct ThreadScan {
        // Products of a thread within these limits are far from the ends of the range.
        static constexpr A kLeast = sizeof(A) == 4 ? A(0x1p-100) : A(0x1p-900),
                           kMost = sizeof(A) == 4 ? A(0x1p100) : A(0x1p900);
        bool in_range;  // every product of elements of the thread, or it is 0 because an element is

        __device__ void begin(const ScanArgs&) {}

        // p * x, and its rounding error since the thread began: products of many numbers that round
        // alike would drift. 16-bit results do not need it.
        template <bool COMPENSATED>
        static __device__ void multiply(A& p, A& error, A x)
        {
            const A q = p * x;
            if (COMPENSATED) error = fma(error, x, fma(p, x, -q));
            p = q;
        }

        template <typename X, typename Y>
        __device__ Suffix suffix(const X&, const Y& y, unsigned segment_heads)
        {
            A p = A(1), error = A(0), least = A(INFINITY), most = A(0);
#pragma unroll
            for (int i = I - 1; i >= 0; --i) {
                multiply<!kIs16Bit<Y>>(p, error, y(i));
                least = fmin(least, fabs(p));
                most = largest(most, fabs(p));
                if (SEG && segment_heads & 1u << i) p = A(1), error = A(0);
            }
            in_range = least >= kLeast && most <= kMost;
            const unsigned row_heads = SEG ? segment_heads : 0;
            if (least == A(0))
                in_range = y.with_local_copy([=](const auto* x, int stride) {
                    return products_within<A>(kLeast, kMost, x, stride, I, row_heads);
                });
            if (in_range) return Suffix::of(p, error);
            return y.with_local_copy([=](const auto* x, int stride) {
                return product_scan<A>(Suffix::identity(), x, stride, nullptr, I, row_heads);
            });
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(
            const Suffix& after, const X&, const Y& y, unsigned segment_heads, const Store& store) const
        {
            if (!in_range || !(after.is_regular() || after.m == A(0))) {
                A products[I];
                y.with_local_copy([&](const auto* x, int stride) {
                    return product_scan<A>(after, x, stride, products, I, SEG ? segment_heads : 0);
                });
#pragma unroll
                for (int c = I / N - 1; c >= 0; --c) {
                    A some[N];
#pragma unroll
                    for (int v = 0; v < N; ++v) some[v] = products[c * N + v];
                    store(c, some);
                }
                return;
            }
            // The carry, in two factors that are in range: products are scaled to subnormal numbers
            // or to infinity in the last multiplication.
            constexpr int most = sizeof(A) == 4 ? 252 : 2000;
            const int e = min(max(after.e, -most), most), half = e >> 1;
            A first = after.m * power_of_two<A>(half), first_error = after.rest * power_of_two<A>(half),
              last = power_of_two<A>(e - half), p = A(1), error = A(0);
            constexpr bool compensated = !kIs16Bit<Y>;
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                A products[N];
#pragma unroll
                for (int v = N - 1; v >= 0; --v) {
                    multiply<compensated>(p, error, y(c * N + v));
                    products[v] = (compensated ? fma(p, first, fma(error, first, p * first_error)) : p * first) * last;
                    if (SEG && segment_heads & 1u << (c * N + v)) p = first = last = A(1), error = first_error = A(0);
                }
                store(c, products);
            }
        }
    };
};
