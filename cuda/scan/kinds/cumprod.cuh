// cumprod, extended-range path: w_i = E_i, c_i = x_i, E_{i+1} = E_i x_i. Products between threads
// have an extended range, so that none overflows or underflows unless its result does.
#pragma once

#include "scan/kinds/cumprod_extended.cuh"

template <typename A, bool EXACT>
struct FastCumprod;

template <typename A>
struct Cumprod : SameCarry<ProductSuffix<A>> {
    static constexpr bool NEEDS_PREFIX = true, SUFFIX_NEEDS_PREFIX = false, LONG_COMBINE = true, HAS_EXCLUSIVE = true;
    template <typename T>
    using FastPathFor = FastCumprod<A, (sizeof(T) > 2)>;
    using Tuning = CumprodTuning;
    using Number = A;
    using Value = A;
    using Prefix = Product<A>;
    using Suffix = ProductSuffix<A>;

    static __device__ Prefix combine(const Prefix& l, const Prefix& r) { return l * r; }
    static __device__ Suffix combine(const Suffix& l, const Suffix& r)
    {
        const Suffix t = {l.a * r.a, l.b + ieee_product(l.a, r.b)};
        return t.a.is_infinite_or_nan() || t.b.is_infinite_or_nan() ? composed<A>(l, r) : t;
    }
    static __device__ A pad(const ScanArgs&) { return A(1); }

    template <int I, int N, bool SEG>
    struct ThreadScan {
        // Product of N elements since their last segment head; after `enter`, of everything before
        // them.
        Prefix vector_product[I / N];
        Prefix product;  // since the last segment head

        __device__ void begin(const ScanArgs&) {}
        static __device__ bool begins(unsigned segment_heads, int c)
        {
            return SEG && segment_heads >> (c * N) & ((1u << N) - 1);
        }

        template <typename X>
        __device__ Prefix prefix(const X& x, unsigned segment_heads)
        {
#pragma unroll
            for (int c = 0; c < I / N; ++c) {
                Prefix p = Prefix::of(x(c * N));
#pragma unroll
                for (int i = c * N + 1; i < c * N + N; ++i)
                    p = SEG && segment_heads >> i & 1 ? Prefix::of(x(i)) : times(p, Prefix::of(x(i)));
                vector_product[c] = p;
                product = c == 0 || begins(segment_heads, c) ? p : product * p;
            }
            return product;
        }

        template <typename X, typename Y>
        __device__ Suffix suffix(const X& x, const Y& y, unsigned segment_heads) const
        {
            Prefix b = Prefix::zero();
#pragma unroll
            for (int i = I - 1; i >= 0; --i)
                b = SEG && segment_heads >> i & 1 ? Prefix::zero()
                                                  : ieee_product(Prefix::of(y(i)) + b, Prefix::of(x(i)));
            if (!product.is_infinite_or_nan() && !b.is_infinite_or_nan()) return {product, b};
            // With infinities or NaN the map of the thread is composed element by element.
            alignas(16) A xs[I], ys[I];
#pragma unroll
            for (int i = 0; i < I; ++i) xs[i] = x(i);
#pragma unroll
            for (int i = 0; i < I; ++i) ys[i] = y(i);
            return of_elements(xs, ys, I, SEG ? segment_heads : 0);
        }

        template <typename X, typename Y>
        __device__ void enter(const Prefix& before, const X&, const Y&, unsigned segment_heads)
        {
            Prefix w = before;
#pragma unroll
            for (int c = 0; c < I / N; ++c) {
                const Prefix p = vector_product[c];
                vector_product[c] = w;
                w = begins(segment_heads, c) ? p : w * p;
            }
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(
            const Suffix& after, const X& x, const Y& y, unsigned segment_heads, const Store& store) const
        {
            Prefix q = after.at_zero();
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                Prefix w[N];
                A dx[N];
                w[0] = SEG && segment_heads >> (c * N) & 1 ? Prefix::one() : vector_product[c];
#pragma unroll
                for (int i = 1; i < N; ++i)
                    w[i] = SEG && segment_heads >> (c * N + i) & 1 ? Prefix::one()
                                                                   : times(w[i - 1], Prefix::of(x(c * N + i - 1)));
#pragma unroll
                for (int i = N - 1; i >= 0; --i) {
                    const Prefix r = Prefix::of(y(c * N + i)) + q;
                    dx[i] = times(w[i], r).value();
                    q = SEG && segment_heads >> (c * N + i) & 1 ? Prefix::zero() : times(Prefix::of(x(c * N + i)), r);
                }
                store(c, dx);
            }
        }
    };
};
