// cumprod of rows that stay within the range of the accumulator, or in which no x is above 1, which are most: states are one or two
// numbers, joined by as many instructions. Whether a row is one shows on the way.
//
// A product of n numbers has n - 1 roundings, however it is joined; most of them are in threads. EXACT, which short results need not be,
// keeps what those took: the first of them is left out at the end.
#pragma once

#include "scan_products.cuh"

// The product of some threads. In float64, where results are as long as it is, it goes on keeping what roundings took.
template <typename A>
struct Factor {
    A product;

    static __device__ Factor of(A product, A rest) { return {product + rest}; }
    __device__ A value() const { return product; }
    __device__ A apply(A x) const { return product * x; }
    __device__ Factor operator*(const Factor& r) const { return {product * r.product}; }
};

template <>
struct Factor<double> {
    double product, rest;

    static __device__ Factor of(double product, double rest) { return {product, rest}; }
    __device__ double value() const { return product + rest; }
    __device__ double apply(double x) const { return fma(product, x, rest * x); }
    __device__ Factor operator*(const Factor& r) const
    {
        const double p = product * r.product;
        return {p, fma(product, r.rest, fma(rest, r.product, fma(product, r.product, -p)))};
    }
};

// Whether numbers are from 2^-42 to 2^22, or in float64 from 2^-320 to 2^192. What is no number is left to others.
template <typename A>
struct Extent {
    A least = INFINITY, most = 0;

    __device__ void add(A x) { least = fmin(least, fabs(x)), most = fmax(most, fabs(x)); }
    __device__ bool near() const { return least >= A(0x1p-42) && most <= A(0x1p22); }
};

template <>
struct Extent<double> {
    unsigned all = 0;

    __device__ void add(double x) { all |= (static_cast<unsigned>(__double2hiint(x)) << 1) - (1023 - 320 << 21); }
    __device__ bool near() const { return all < 1u << 30; }
};

// Q -> a Q + b.
template <typename A>
struct TameProductTail {
    A a, b;
};

// Products from the start of the row, of a warp and of a thread to any of their elements are far from the ends of the range, so that
// those of what lies between, which are quotients of two of them, are within it. Where no |x| is above 1, no product is, and one that is
// too small is 0 or has lost places: at most 2^-149 of what it is multiplied by, which is small beside the first dx of the row.
template <typename A, bool EXACT>
struct TameCumprod : SameTail<TameProductTail<A>> {
    static constexpr bool HEAD = true, ORDERED = false, FALLS = true;
    static constexpr A kLeast = sizeof(A) == 4 ? A(0x1p-80) : A(0x1p-600), kMost = sizeof(A) == 4 ? A(0x1p40) : A(0x1p400);
    // Where x only falls: the least that the first |dx| may be, and the largest |dy|.
    static constexpr A kFirst = sizeof(A) == 4 ? A(0x1p-64) : A(0x1p-500), kGreat = sizeof(A) == 4 ? A(0x1p18) : A(0x1p200);
    using Number = A;
    using Value = A;
    using Head = Factor<A>;
    using Tail = TameProductTail<A>;

    static __device__ Head empty() { return Head::of(A(1), A(0)); }
    static __device__ Tail nothing() { return {A(1), A(0)}; }
    static __device__ Head join(const Head& l, const Head& r) { return l * r; }
    static __device__ Tail join(const Tail& l, const Tail& r) { return {l.a * r.a, fma(l.a, r.b, l.b)}; }
    static __device__ A pad(const ScanArgs&) { return A(1); }
    static __device__ unsigned faults(const Head& h) { return fabs(h.product) >= kLeast && fabs(h.product) <= kMost ? 0 : kLeavesRange; }

    template <int I, int N, bool SEG>
    struct Cell {
        A chunk[I / N];  // the product of what precedes every N elements: in the thread, then in the row
        Head product;    // since the last start
        unsigned faults;

        __device__ void begin(const ScanArgs&) {}

        // Whether its elements are tame is left to the walk that finds tails.
        template <typename X>
        __device__ Head head(const X& x, unsigned)
        {
            static_assert(!SEG);
            faults = x.beyond(A(1)) ? kRises : 0;
            if constexpr (!EXACT) {  // in four chains, so that none is long
                A p[4] = {x(0), x(1), x(2), x(3)};
#pragma unroll
                for (int i = 4; i < I; ++i) p[i % 4] *= x(i);
                return {(p[0] * p[1]) * (p[2] * p[3])};
            }
            A p = x(0), rest = A(0);
#pragma unroll
            for (int i = 1; i < I; ++i) {
                const A q = p * x(i);
                rest = fma(rest, x(i), fma(p, x(i), -q));
                p = q;
            }
            return Head::of(p, rest);
        }

        // Finds the head on the way: Q -> sum_i p_i dy_i + p Q, where p_i are the products so far, up to the first start.
        template <typename X, typename Y>
        __device__ Tail tail(const X& x, const Y& y, unsigned starts)
        {
            A p = A(1), rest = A(0), sum = A(0);
            Extent<A> extent;
            const unsigned ahead = ahead_of(starts);
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (i % N == 0) chunk[i / N] = p;
                if (SEG && starts & 1u << i) p = A(1), rest = A(0);
                const A q = i == 0 ? x(i) : p * x(i);
                if (EXACT && i > 0) rest = fma(rest, x(i), fma(p, x(i), -q));
                p = q;
                extent.add(p);
                if (!SEG || ahead & 1u << i) sum = fma(p, y(i), sum);
            }
            faults = extent.near() ? 0 : kLeavesRange;
            product = EXACT ? Head::of(p, rest) : Head{p};
            return {product.value(), sum};
        }

        template <typename X, typename Y>
        __device__ void enter(const Head& before, const X&, const Y& y, unsigned starts)
        {
            faults |= TameCumprod::faults(before) | (y.beyond(kGreat) ? kRises : 0);
            const unsigned ahead = ahead_of(starts);
#pragma unroll
            for (int c = 0; c < I / N; ++c)
                if (!SEG || c == 0 || ahead & 1u << (c * N - 1)) chunk[c] = before.apply(chunk[c]);
        }

        // Whether a row begins with a dx that is 0 or next to it.
        template <typename DX>
        static __device__ bool begins_small(const DX& dx, unsigned starts)
        {
            bool some = false;
#pragma unroll
            for (int i = 0; i < I; ++i) some = some || (starts & 1u << i && fabs(dx(i)) < kFirst);
            return some;
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(const Tail& after, const X& x, const Y& y, unsigned starts, const Store& store)
        {
            A t = after.b, first = A(0);
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                A w[N], dx[N], p = chunk[c];
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    if (SEG && starts & 1u << (c * N + i)) p = A(1);
                    w[i] = p;
                    p *= x(c * N + i);
                }
#pragma unroll
                for (int i = N - 1; i >= 0; --i) {
                    const A r = y(c * N + i) + t;
                    dx[i] = w[i] * r;
                    t = x(c * N + i) * r;
                    if (!SEG && c == 0) first = fmax(first, fabs(dx[i]));
                    if (SEG && starts & 1u << (c * N + i)) t *= A(0);  // what is no number stays so
                }
                store(c, dx);
            }
            if (x.beyond(A(1)) || (!SEG && starts && first < kFirst)) faults |= kRises;
            if (!(t * A(0) == A(0))) faults = kUndone;
        }
    };

};

template <typename A, typename T>
struct TameOf<Cumprod<A>, T> {
    using Kind = TameCumprod<A, (sizeof(T) > 2)>;
};
template <typename A, bool EXACT>
constexpr bool kTame<TameCumprod<A, EXACT>> = true;
template <typename A, bool EXACT>
constexpr bool kTogether<TameCumprod<A, EXACT>> = true;
