// logcumsumexp as a forward scan. The exponentials of a thread share an anchor, the largest x so
// far. A thread whose first sums are small beside e^anchor takes the running maximum of each
// element instead, as the logarithm of a small sum would cancel the anchor.
#pragma once

#include "scan/kinds/cumextremum.cuh"
#include "scan/kinds/forward.cuh"
#include "scan/kinds/logcumsumexp.cuh"

// from + log s. ROUGH: the logarithm has a relative error of 2^-22, or an absolute one of 2^-22 for
// s between 1/2 and 2; otherwise an ulp.
template <bool ROUGH>
__device__ inline float add_log(float from, float s)
{
    if constexpr (!ROUGH) return from + logf(s);
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(s));
    return fmaf(y, 0x1.62e43p-1f, from);
}
template <bool ROUGH>
__device__ double add_log(double from, double s)
{
    return from + log(s);
}

// log1p(t). ROUGH: with an absolute error of about 2^-22.
template <bool ROUGH>
__device__ inline float log_1p(float t)
{
    return ROUGH ? add_log<true>(0.0f, t + 1.0f) : log1pf(t);
}
template <bool ROUGH>
__device__ double log_1p(double t)
{
    return log1p(t);
}

// The sum of e^x is e^m (1 + t), where m is the largest x: small terms beside it are not rounded
// away. If m is +inf, 1 + t is the count of such x; without elements it is 0.
template <typename A>
struct LogSum {
    A m, t;

    static __device__ LogSum identity() { return {-A(INFINITY), A(-1)}; }
};

// The sums of n elements of a thread, from the last one down, given the sum before them. Stores
// their logarithms unless `to` is null, and returns the last sum.
template <typename A, typename T>
__device__ __noinline__ LogSum<A> log_sum_scan(
    LogSum<A> all, const T* elements, int stride, A* to, int n, unsigned segment_heads)
{
#pragma unroll 1
    for (int i = n - 1; i >= 0; --i) {
        const A x = widen<A>(elements[i * stride]);
        if (x != -A(INFINITY)) {
            const bool rises = x > all.m;
            const A low = rises ? all.m : x, high = rises ? x : all.m, f = low == high ? A(1) : exp_below(low, high);
            all.t = rises ? fma(all.t, f, f) : all.t + f;
            if (rises) all.m = x;
        }
        if (to) to[i] = all.m + log_1p<sizeof(T) == 2>(all.t);
        if (segment_heads >> i & 1) all = LogSum<A>::identity();
    }
    return all;
}

template <typename A>
struct ForwardLogcumsumexp : ForwardKind<A, LogSum<A>> {
    static constexpr bool KEEPS_ELEMENTS = true, STRIPED_ROWS = false, HAS_EXCLUSIVE = true;
    using Tuning = ForwardLogcumsumexpTuning;
    using Suffix = LogSum<A>;

    static __device__ Suffix combine(const Suffix& l, const Suffix& r)
    {
        const bool right = r.m > l.m;
        const Suffix high = right ? r : l, low = right ? l : r;
        const A f = Logcumsumexp<A>::ratio(low.m, high.m);
        return {high.m, high.t + fma(low.t, f, f)};
    }
    template <typename T>
    static __device__ T pad_y(const ScanArgs&)
    {
        return static_cast<T>(-INFINITY);
    }

    template <int I, int N, bool SEG>
    struct ThreadScan {
        static constexpr A kLeast = A(0x1p-12);  // the least sum, relative to e^anchor, that is still accurate
        A d[I];                                  // e^{x_i - anchor}
        A anchor;                                // the largest x of the thread; NaN if any is

        __device__ void begin(const ScanArgs&) {}

        template <typename X, typename Y>
        __device__ Suffix suffix(const X&, const Y& y, unsigned segment_heads)
        {
            anchor = -A(INFINITY);
            A m = -A(INFINITY);  // SEG: the largest x since the last segment head
#pragma unroll
            for (int i = I - 1; i >= 0; --i) {
                anchor = largest(anchor, y(i));
                if (SEG) m = segment_heads & 1u << i ? -A(INFINITY) : largest(m, y(i));
            }
            if (!SEG) m = anchor;
            if (m == -A(INFINITY)) {
                if (!SEG) clear();
                return Suffix::identity();
            }
            A s = A(0), rest = A(0);  // SEG: how many elements equal m, and the sum of the others
#pragma unroll
            for (int i = I - 1; i >= 0; --i) {
                d[i] = exp_below(y(i), m);
                if (SEG && d[i] != A(1))
                    rest += d[i];
                else
                    s += d[i];
                if (SEG && segment_heads & 1u << i) s = rest = A(0);
            }
            if (m < A(INFINITY)) return {m, s - A(1) + rest};
            return y.with_local_copy([=](const auto* x, int stride) {
                return log_sum_scan<A>(Suffix::identity(), x, stride, nullptr, I, SEG ? segment_heads : 0);
            });
        }

        // Of a thread whose x are all -inf.
        __device__ void clear()
        {
#pragma unroll
            for (int i = 0; i < I; ++i) d[i] = A(0);
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(
            const Suffix& after, const X&, const Y& y, unsigned segment_heads, const Store& store) const
        {
            const A all = fmax(after.m, anchor);
            if (anchor < A(INFINITY) && all < A(INFINITY) && after.t == after.t) {
                if (SEG || after.m == -A(INFINITY)) return scan_from_largest(after, y, segment_heads, store);
                const A scale = Logcumsumexp<A>::ratio(anchor, all), f = Logcumsumexp<A>::ratio(after.m, all),
                        s = fma(after.t, f, f);
                if (s >= kLeast) {
                    // A rough logarithm suffices where it is not small, or small beside the anchor.
                    if (kIs16Bit<Y> || (sizeof(A) == 4 && (s >= A(2) || fabs(all) >= A(1))))
                        return add_logs<true>(all, s, scale, store);
                    return add_logs<false>(all, s, scale, store);
                }
            }
            A sums[I];
            y.with_local_copy([&](const auto* x, int stride) {
                return log_sum_scan<A>(after, x, stride, sums, I, SEG ? segment_heads : 0);
            });
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                A some[N];
#pragma unroll
                for (int v = 0; v < N; ++v) some[v] = sums[c * N + v];
                store(c, some);
            }
        }

        // The elements of the thread, given the sum s before it, relative to e^all.
        template <bool ROUGH, typename Store>
        __device__ void add_logs(A all, A s, A scale, const Store& store) const
        {
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                A sums[N];
#pragma unroll
                for (int v = N - 1; v >= 0; --v) {
                    s = fma(d[c * N + v], scale, s);
                    sums[v] = add_log<ROUGH>(all, s);
                }
                store(c, sums);
            }
        }

        // The elements of a thread in which rows begin: each sum is relative to the largest x so
        // far of its row (online softmax), so that small sums are as accurate as large ones.
        template <typename Y, typename Store>
        __device__ void scan_from_largest(
            const Suffix& after, const Y& y, unsigned segment_heads, const Store& store) const
        {
            A m = after.m, t = after.t;
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                A sums[N];
#pragma unroll
                for (int v = N - 1; v >= 0; --v) {
                    const A x = y(c * N + v), most = fmax(m, x), e = exp_below(fmin(m, x), most);
                    if (x > -A(INFINITY)) t = x > m ? fma(t, e, e) : t + e;
                    m = most;
                    sums[v] = m + log_1p<kIs16Bit<Y>>(t);
                    if (SEG && segment_heads & 1u << (c * N + v)) m = -A(INFINITY), t = A(-1);
                }
                store(c, sums);
            }
        }
    };
};
