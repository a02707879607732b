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

    static __device__ Product of(double x, i64 e = 0)
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

__device__ inline Product<double> operator+(Product<double> a, Product<double> b)
{
    // A power of two that is never 0, so that it leaves infinities alone.
    const auto power = [](i64 k) { return __hiloint2double(max(static_cast<int>(k) + 1023, 1) << 20, 0); };
    const i64 e = max(a.e, b.e);
    return Product<double>::of(a.m * power(max(a.e - e, i64(-2000))) + b.m * power(max(b.e - e, i64(-2000))), e);
}

// N elements with care, where the short form may leave the range or meet 0 * inf. They wait in shared memory: x, then y.
template <typename A, int N>
struct Careful {
    A* x;
    unsigned starts;

    __device__ Product<A> head(Product<A> p) const { return before(N, p); }

    __device__ Product<A> tail(Product<A> q) const
    {
#pragma unroll 1
        for (int i = N - 1; i >= 0; --i) q = starts >> i & 1 ? Product<A>::zero() : (Product<A>::of(x[N + i]) + q) * Product<A>::of(x[i]);
        return q;
    }

    // dx takes the place of y.
    __device__ Product<A> finish(Product<A> w, Product<A> q) const
    {
#pragma unroll 1
        for (int i = N - 1; i >= 0; --i) {
            const Product<A> own = starts >> i & 1 ? Product<A>::one() : before(i, w), r = Product<A>::of(x[N + i]) + q;
            x[N + i] = (own * r).value();
            q = starts >> i & 1 ? Product<A>::zero() : Product<A>::of(x[i]) * r;
        }
        return q;
    }

    // The product of what precedes element i.
    __device__ Product<A> before(int i, Product<A> p) const
    {
#pragma unroll 1
        for (int k = 0; k < i; ++k) p = starts >> k & 1 ? Product<A>::of(x[k]) : p * Product<A>::of(x[k]);
        return p;
    }
};

template <typename A>
struct ProductTail {
    Product<A> a, b;
};

template <typename A>
struct Cumprod {
    static constexpr bool HEAD = true, ORDERED = false, ROOM = true;
    using Number = A;
    using Value = A;
    using Head = Product<A>;
    using Tail = ProductTail<A>;
    using Far = Tail;

    static __device__ Head empty() { return Head::one(); }
    static __device__ Head join(const Head& l, const Head& r) { return l * r; }
    static __device__ Tail nothing() { return {Head::one(), Head::zero()}; }
    static __device__ Tail join(const Tail& l, const Tail& r) { return {l.a * r.a, l.b + l.a * r.b}; }
    static __device__ Far far(const Tail& t) { return t; }
    static __device__ Tail near(const Far& t) { return t; }
    static __device__ A pad(const ScanArgs&) { return A(1); }
    static __device__ bool finite(A x) { return x - x == A(0); }

    template <int I, int N, bool SEG>
    struct Cell {
        static constexpr A kLeast = sizeof(A) == 4 ? A(0x1p-120) : A(0x1p-1000);
        static constexpr unsigned kChunk = (1u << N) - 1;
        A chunk[I / N];  // the product of N elements since their last start; then the product of all before them
        unsigned irregular;
        A* room;  // 2 N numbers in shared memory
        Head product;  // since the last start
        Head entering;

        __device__ void begin(const ScanArgs&, A* room) { this->room = room; }

        static __device__ unsigned within(unsigned starts, int c) { return SEG ? starts >> (c * N) & kChunk : 0; }

        template <typename X, typename Y>
        __device__ Careful<A, N> careful(const X& x, const Y& y, unsigned starts, int c) const
        {
#pragma unroll
            for (int i = 0; i < N; ++i) room[i] = x(c * N + i), room[N + i] = y(c * N + i);
            return {room, within(starts, c)};
        }

        template <typename X>
        __device__ Head head(const X& x, unsigned starts)
        {
            product = Head::one();
            irregular = 0;
#pragma unroll
            for (int c = 0; c < I / N; ++c) {
                A p = A(1), least = A(1), most = A(1);
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    if (SEG && starts >> (c * N + i) & 1) p = A(1);
                    p = i == 0 ? x(c * N) : p * x(c * N + i);
                    least = i == 0 ? fabs(p) : fmin(least, fabs(p));
                    if (SEG) most = fmax(most, fabs(p));  // before the last start
                }
                chunk[c] = p;
                if (least >= kLeast && finite(p) && most < A(INFINITY)) {
                    product = within(starts, c) ? Head::of(p) : c == 0 ? Head::of(p) : product * Head::of(p);
                } else {
                    irregular |= 1u << c;
                    product = careful(x, x, starts, c).head(product);
                }
            }
            return product;
        }

        // Before enter.
        template <typename X, typename Y>
        __device__ Tail tail(const X& x, const Y& y, unsigned starts) const
        {
            Head b = Head::zero();
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                A q = A(0);
#pragma unroll
                for (int i = N - 1; i >= 0; --i) {
                    q = x(c * N + i) * (y(c * N + i) + q);
                    if (SEG && starts >> (c * N + i) & 1) q = A(0);
                }
                if (irregular >> c & 1 || !finite(q))
                    b = careful(x, y, starts, c).tail(b);
                else
                    b = within(starts, c) || c == I / N - 1 ? Head::of(q) : Head::of(q) + Head::of(chunk[c]) * b;
            }
            return {product, b};
        }

        template <typename X, typename Y>
        __device__ void enter(const Head& before, const X& x, const Y& y, unsigned starts)
        {
            Head w = entering = before;
#pragma unroll
            for (int c = 0; c < I / N; ++c) {
                const A p = chunk[c];
                chunk[c] = w.value();
                if (c == I / N - 1) break;
                if (irregular >> c & 1)
                    w = careful(x, y, starts, c).head(w);
                else
                    w = within(starts, c) ? Head::of(p) : w * Head::of(p);
            }
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(const Tail& after, const X& x, const Y& y, unsigned starts, const Store& store) const
        {
            Head q = after.b;
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                A w[N], dx[N], p = chunk[c], t = q.value(), sum = A(0);
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    if (SEG && starts >> (c * N + i) & 1) p = A(1);
                    w[i] = p;
                    p *= x(c * N + i);
                }
#pragma unroll
                for (int i = N - 1; i >= 0; --i) {
                    const A r = y(c * N + i) + t;
                    dx[i] = w[i] * r;
                    t = x(c * N + i) * r;
                    sum += t + dx[i];
                    if (SEG && starts >> (c * N + i) & 1) t = A(0);
                }
                if (finite(sum)) {
                    q = Head::of(t);
                } else {
                    Head ahead = entering;
#pragma unroll
                    for (int k = 0; k < c; ++k) ahead = careful(x, y, starts, k).head(ahead);
                    q = careful(x, y, starts, c).finish(ahead, q);
#pragma unroll
                    for (int i = 0; i < N; ++i) dx[i] = room[N + i];
                }
                store(c, dx);
            }
        }
    };
};
