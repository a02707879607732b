// cummax and cummin: runs, whose records are the elements that win over all before them.
#pragma once

#include "scan/kinds/cumsum.cuh"

// Where numbers compare as the operation wants: NaN is above all, -0.0 is 0.0, and everything is negated for a minimum.
__device__ inline int rank_of(float x, float sign)
{
    const int bits = __float_as_int(__fmaf_rn(x, sign, 0.0f));  // NaN becomes 0x7fffffff
    return bits ^ (bits >> 31 & 0x7fffffff);
}

__device__ inline i64 rank_of(double x, double sign)
{
    if (x != x) return 0x7fffffffffffffff;
    const i64 bits = __double_as_longlong(__fma_rn(x, sign, 0.0));
    return bits ^ (bits >> 63 & 0x7fffffffffffffff);
}

// The number of a rank, which is not that of NaN.
__device__ inline float value_of(int rank) { return __int_as_float(rank ^ (rank >> 31 & 0x7fffffff)); }
__device__ inline double value_of(i64 rank) { return __longlong_as_double(rank ^ (rank >> 63 & 0x7fffffffffffffff)); }

// NaN if one of them is.
__device__ inline float largest(float a, float b)
{
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
}

__device__ inline double largest(double a, double b) { return a >= b || a != a ? a : b; }

template <typename A>
struct Cumextremum : Runs<A> {
    static constexpr bool HEAD = true, ORDERED = true;
    using Value = A;
    using Rank = decltype(rank_of(A(), A()));
    static constexpr Rank kLeast = static_cast<Rank>(1ull << (8 * sizeof(A) - 1)) + 1, kNaN = -kLeast;  // below and above every number
    struct Head {
        Rank best;
    };

    using Runs<A>::join;
    static __device__ Head empty() { return {kLeast}; }
    static __device__ Head join(const Head& l, const Head& r) { return {l.best > r.best ? l.best : r.best}; }
    static __device__ A pad(const ScanArgs& args) { return args.flags & kMinimum ? A(INFINITY) : -A(INFINITY); }

    template <int I, int N, bool SEG>
    struct Cell : Runs<A>::template Cell<I, N, SEG> {
        A sign;
        int last;
        Rank own;      // the best since the last start
        bool numbers;  // of elements that are had two at a time: none is NaN

        __device__ void begin(const ScanArgs& args)
        {
            sign = args.flags & kMinimum ? A(-1) : A(1);
            last = args.flags & kFirst ? 0 : 1;
        }

        template <typename X>
        __device__ Head head(const X& x, unsigned starts)
        {
            if constexpr (kPairs<X>) {
                const A all = extreme(x, 0);
                numbers = all == all;
                own = rank_of(SEG ? extreme(x, starts ? 31 - __clz(starts) : 0) : all, sign);
                return {own};
            }
            A most = -A(INFINITY);
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (SEG && starts & 1u << i) most = -A(INFINITY);
                most = largest(most, x(i) * sign);
            }
            own = rank_of(most, A(1));
            return {own};
        }

        // The best of the elements from one on; NaN if one is.
        template <typename X>
        __device__ A extreme(const X& x, int from) const
        {
            return sign < A(0) ? x.template extreme<true, SEG>(from) : x.template extreme<false, SEG>(from);
        }

        __device__ Head head_of(A x) const { return {rank_of(x, sign)}; }

        // Whether one of these wins, or some element does, if nothing else is ahead.
        __device__ bool beats(const Head& one, const Head& before) const { return one.best > before.best - last; }
        __device__ bool wins(const Head& before) const { return beats({own}, before); }

        template <typename X, typename Y>
        __device__ void enter(const Head& before, const X& x, const Y&, unsigned starts)
        {
            this->records = starts;
            if (starts == 0 && !wins(before)) return;  // nothing wins over what is ahead
            if (kPairs<X> && last && numbers && before.best != kNaN) {
                A most = before.best == kLeast ? -A(INFINITY) : value_of(before.best);
#pragma unroll
                for (int i = 0; i < I; ++i) {
                    if (SEG && starts & 1u << i) most = -A(INFINITY);
                    const A one = x(i) * sign;
                    if (one >= most) this->records |= Cell::ONE << i, most = one;
                }
                return;
            }
            Rank best = before.best;
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (SEG && starts & 1u << i) best = kLeast;
                const Rank rank = rank_of(x(i), sign);
                if (rank > best - last) this->records |= Cell::ONE << i;
                best = rank > best ? rank : best;
            }
        }
    };
};

// The same, where it is only to be found which elements are records, and for the pass that is told.
template <typename A>
struct Finder : Cumextremum<A> {};
template <typename A>
constexpr bool kFinds<Finder<A>> = true;
