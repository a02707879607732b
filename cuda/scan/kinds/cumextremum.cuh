// cummax and cummin: segmented sums of dy, whose segments begin at records, the elements that win
// over all before them.
#pragma once

#include "scan/kinds/cumsum.cuh"

// The rank of a number: an integer that compares as the operation requires. NaN is above
// everything, -0.0 equals 0.0, and a minimum negates x.
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

// The number of a rank that is not NaN's.
__device__ inline float value_of(int rank) { return __int_as_float(rank ^ (rank >> 31 & 0x7fffffff)); }
__device__ inline double value_of(i64 rank) { return __longlong_as_double(rank ^ (rank >> 63 & 0x7fffffffffffffff)); }

// The maximum; NaN if either is NaN.
__device__ inline float largest(float a, float b)
{
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
}

__device__ inline double largest(double a, double b) { return a >= b || a != a ? a : b; }

template <typename A>
struct Cumextremum : SegmentedSum<A> {
    static constexpr bool NEEDS_PREFIX = true, SUFFIX_NEEDS_PREFIX = true;
    using Value = A;
    using Rank = decltype(rank_of(A(), A()));
    // Below and above every number.
    static constexpr Rank kLeast = static_cast<Rank>(1ull << (8 * sizeof(A) - 1)) + 1, kNaN = -kLeast;
    struct Prefix {
        Rank best;

        static __device__ Prefix identity() { return {kLeast}; }
    };

    using SegmentedSum<A>::combine;
    static __device__ Prefix combine(const Prefix& l, const Prefix& r) { return {l.best > r.best ? l.best : r.best}; }
    static __device__ A pad(const ScanArgs& args) { return args.flags & kMinimum ? A(INFINITY) : -A(INFINITY); }

    template <int I, int N, bool SEG>
    struct ThreadScan : SegmentedSum<A>::template ThreadScan<I, N, SEG> {
        A sign;
        int ties_win;  // 1: of equal elements the last one wins
        Rank own;      // the best since the last segment head
        bool no_nan;   // of 16-bit elements: none is NaN

        __device__ void begin(const ScanArgs& args)
        {
            sign = args.flags & kMinimum ? A(-1) : A(1);
            ties_win = args.flags & kFirst ? 0 : 1;
        }

        template <typename X>
        __device__ Prefix prefix(const X& x, unsigned segment_heads)
        {
            if constexpr (kIs16Bit<X> && !X::IS_COLUMN) {
                const A all = extremum(x, 0);
                no_nan = all == all;
                own = rank_of(SEG ? extremum(x, segment_heads ? 31 - __clz(segment_heads) : 0) : all, sign);
                return {own};
            }
            A most = -A(INFINITY);
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (SEG && segment_heads & 1u << i) most = -A(INFINITY);
                most = largest(most, x(i) * sign);
            }
            own = rank_of(most, A(1));
            return {own};
        }

        // The least (cummin) or largest element from index `from` on; NaN if any is NaN.
        template <typename X>
        __device__ A extremum(const X& x, int from) const
        {
            return sign < A(0) ? x.template extremum<true, SEG>(from) : x.template extremum<false, SEG>(from);
        }

        __device__ Prefix prefix_of(A x) const { return {rank_of(x, sign)}; }

        // beats: whether a state wins over what precedes it; `>` on integers is `>=` if ties win,
        // and kLeast is 1 above the least integer. wins: whether any element of the thread does,
        // segment heads aside.
        __device__ bool beats(const Prefix& one, const Prefix& before) const
        {
            return one.best > before.best - ties_win;
        }
        __device__ bool wins(const Prefix& before) const { return beats({own}, before); }

        template <typename X, typename Y>
        __device__ void enter(const Prefix& before, const X& x, const Y&, unsigned segment_heads)
        {
            this->records = segment_heads;
            if (segment_heads == 0 && !wins(before)) return;  // no element is a record
            if (kIs16Bit<X> && !X::IS_COLUMN && ties_win && no_nan && before.best != kNaN) {
                A most = before.best == kLeast ? -A(INFINITY) : value_of(before.best);
#pragma unroll
                for (int i = 0; i < I; ++i) {
                    if (SEG && segment_heads & 1u << i) most = -A(INFINITY);
                    const A one = x(i) * sign;
                    if (one >= most) this->records |= ThreadScan::ONE << i, most = one;
                }
                return;
            }
            Rank best = before.best;
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (SEG && segment_heads & 1u << i) best = kLeast;
                const Rank rank = rank_of(x(i), sign);
                if (rank > best - ties_win) this->records |= ThreadScan::ONE << i;
                best = rank > best ? rank : best;
            }
        }
    };
};

// The record pass: finds record flags and nothing else, for a second pass that reads them in place
// of x.
template <typename A>
struct RecordPass : Cumextremum<A> {
    static constexpr bool FINDS_RECORDS = true;
};
