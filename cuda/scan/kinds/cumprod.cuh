// cumprod:  w = E, c = x, E' = E x
#pragma once

#include "scan/kinds/cumprod_extended.cuh"

template <typename A>
struct Cumprod : SameTail<ProductTail<A>> {
    static constexpr bool HEAD = true, ORDERED = false;
    using Number = A;
    using Value = A;
    using Head = Product<A>;
    using Tail = ProductTail<A>;

    static __device__ Head empty() { return Head::one(); }
    static __device__ Head join(const Head& l, const Head& r) { return l * r; }
    static __device__ Tail nothing() { return {Head::one(), Head::zero()}; }
    static __device__ Tail join(const Tail& l, const Tail& r)
    {
        const Tail t = {l.a * r.a, l.b + plain(l.a, r.b)};
        return t.a.special() || t.b.special() ? composed<A>(l, r) : t;
    }
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
                for (int i = c * N + 1; i < c * N + N; ++i) p = SEG && starts >> i & 1 ? Head::of(x(i)) : times(p, Head::of(x(i)));
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
            for (int i = I - 1; i >= 0; --i) b = SEG && starts >> i & 1 ? Head::zero() : plain(Head::of(y(i)) + b, Head::of(x(i)));
            if (!product.special() && !b.special()) return {product, b};
            alignas(16) A xs[I], ys[I];
#pragma unroll
            for (int i = 0; i < I; ++i) xs[i] = x(i);
#pragma unroll
            for (int i = 0; i < I; ++i) ys[i] = y(i);
            return of_elements(xs, ys, I, SEG ? starts : 0);
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
            Head q = after.entering();
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                Head w[N];
                A dx[N];
                w[0] = SEG && starts >> (c * N) & 1 ? Head::one() : chunk[c];
#pragma unroll
                for (int i = 1; i < N; ++i) w[i] = SEG && starts >> (c * N + i) & 1 ? Head::one() : times(w[i - 1], Head::of(x(c * N + i - 1)));
#pragma unroll
                for (int i = N - 1; i >= 0; --i) {
                    const Head r = Head::of(y(c * N + i)) + q;
                    dx[i] = times(w[i], r).value();
                    q = SEG && starts >> (c * N + i) & 1 ? Head::zero() : times(Head::of(x(c * N + i)), r);
                }
                store(c, dx);
            }
        }
    };
};
