// logcumsumexp as a forward scan. The exponentials of a thread share an anchor, the largest x so
// far. A thread whose first sums are small beside e^anchor takes the running maximum of each
// element instead, as the logarithm of a small sum would cancel the anchor.
#pragma once

#include "scan/kinds/cumextremum.cuh"
#include "scan/kinds/forward.cuh"
#include "scan/kinds/logcumsumexp.cuh"

// from + log s. ROUGH: the logarithm has a relative error of 2^-22, or an absolute one of 2^-22 for s
// between 1/2 and 2; otherwise an ulp.
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

// e^{x - base}, x <= base. In float32 its error is at most 2^-22 beside 1: sums of such numbers need
// no more.
__device__ inline float exp_below(float x, float base)
{
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"((x - base) * kLog2e));
    return e;
}
__device__ inline double exp_below(double x, double base) { return exp_of(x, base); }

// log(sum of e^x) of a state.
template <typename A>
__device__ A log_sum_of(const LogcumsumexpPrefix<A>& sum)
{
    return sum.s == A(1) ? sum.m : add_log<false>(sum.m, sum.s);
}

// The sums of n elements of a thread, from the last one down, given the sum before them. Stores
// their logarithms unless `to` is null, and returns the last sum.
template <typename A, typename T>
__device__ __noinline__ LogcumsumexpPrefix<A> log_sum_scan(
    LogcumsumexpPrefix<A> all, const T* x, int stride, A* to, int n, unsigned segment_heads)
{
#pragma unroll 1
    for (int i = n - 1; i >= 0; --i) {
        all = Logcumsumexp<A>::step(all, widen<A>(x[i * stride])).h;
        if (to) to[i] = log_sum_of(all);
        if (segment_heads >> i & 1) all = LogcumsumexpPrefix<A>::identity();
    }
    return all;
}

template <typename A>
struct ForwardLogcumsumexp : ForwardKind<A, LogcumsumexpPrefix<A>> {
    static constexpr bool KEEPS_ELEMENTS = true, STRIPED_ROWS = false;
    using Tuning = ForwardLogcumsumexpTuning;
    using Suffix = LogcumsumexpPrefix<A>;

    static __device__ Suffix combine(const Suffix& l, const Suffix& r) { return Logcumsumexp<A>::combine(r, l); }
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
#pragma unroll
            for (int i = 0; i < I; ++i) anchor = largest(anchor, y(i));
            const A base = anchor == -A(INFINITY) ? A(0) : anchor;
            A s = A(0);
#pragma unroll
            for (int i = I - 1; i >= 0; --i) {
                d[i] = exp_below(y(i), base);
                s += d[i];
                if (SEG && segment_heads & 1u << i) s = A(0);
            }
            if ((SEG && segment_heads & 1) || (anchor == -A(INFINITY) && s == A(0))) return Suffix::identity();
            if (anchor < A(INFINITY) && (!SEG || segment_heads == 0 || s >= kLeast)) return {anchor, s};
            return y.with_local_copy([=](const auto* x, int stride) {
                return log_sum_scan<A>(Suffix::identity(), x, stride, nullptr, I, SEG ? segment_heads : 0);
            });
        }

        // Whether the first sum above 0 of a row that begins in the thread is accurate; a sum is 0 if
        // and only if all x are -inf.
        template <typename Y>
        __device__ bool begins_accurate(A scale, const Y& y) const
        {
            A first = A(1);
#pragma unroll
            for (int i = 0; i < I; ++i)
                if (y(i) > -A(INFINITY)) first = d[i] * scale;
            return first >= kLeast;
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(
            const Suffix& after, const X&, const Y& y, unsigned segment_heads, const Store& store) const
        {
            if constexpr (SEG) {
                if (anchor < A(INFINITY) && after.m < A(INFINITY) && after.s == after.s)
                    return scan_segments(after, y, segment_heads, store);
            } else {
                const A all = fmax(after.m, anchor), scale = Logcumsumexp<A>::ratio(anchor, all),
                        s = after.s * Logcumsumexp<A>::ratio(after.m, all);
                if (anchor < A(INFINITY) && all < A(INFINITY) &&
                    (after.m == -A(INFINITY) ? begins_accurate(scale, y) : s >= kLeast)) {
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

        // The elements of a thread that has several rows: each sum is relative to the largest x so far
        // of its row (online softmax), as rows may have very different ones.
        template <typename Y, typename Store>
        __device__ void scan_segments(
            const Suffix& after, const Y& y, unsigned segment_heads, const Store& store) const
        {
            A m = after.m, s = after.s;
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                A sums[N];
#pragma unroll
                for (int v = N - 1; v >= 0; --v) {
                    const A x = y(c * N + v), most = fmax(m, x), e = exp_below(fmin(m, x), most);
                    if (x > -A(INFINITY)) s = x > m ? fma(s, e, A(1)) : s + e;
                    m = most;
                    sums[v] = add_log<kIs16Bit<Y>>(m, s);
                    if (segment_heads & 1u << (c * N + v)) m = -A(INFINITY), s = A(0);
                }
                store(c, sums);
            }
        }
    };
};
