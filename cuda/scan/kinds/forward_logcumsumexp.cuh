// logcumsumexp as a forward scan. The exponentials of a thread share an anchor, the largest x so
// far. A thread whose first sums are small beside e^anchor takes the running maximum of each
// element instead, as the logarithm of a small sum would cancel the anchor.
#pragma once

#include "scan/kinds/forward.cuh"
#include "scan/kinds/logcumsumexp.cuh"

// from + log s. ROUGH: with an absolute error of about 2^-22, for 16-bit results; otherwise to an
// ulp of the logarithm.
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

// e^{x - base}, given shift = -base log2 e. ROUGH: with a relative error of 2^-23 |x| or so, for
// 16-bit results.
template <bool ROUGH, typename A>
__device__ A exp_from(A x, A base, A shift)
{
    if constexpr (!ROUGH) return exp_of(x, base);
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(fmaf(x, kLog2e, shift)));
    return e;
}

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
        A anchor;                                // the largest x of the thread

        __device__ void begin(const ScanArgs&) {}

        template <typename X, typename Y>
        __device__ Suffix suffix(const X&, const Y& y, unsigned segment_heads)
        {
            anchor = -A(INFINITY);
#pragma unroll
            for (int i = 0; i < I; ++i) anchor = fmax(anchor, y(i));
            const A base = anchor == -A(INFINITY) ? A(0) : anchor, shift = base * -A(kLog2e);
            A s = A(0);
#pragma unroll
            for (int i = I - 1; i >= 0; --i) {
                d[i] = exp_from<kIs16Bit<Y>>(y(i), base, shift);
                s += d[i];
                if (SEG && segment_heads & 1u << i) s = A(0);
            }
            if (anchor == -A(INFINITY) && s == A(0)) return Suffix::identity();
            if (anchor < A(INFINITY) && (!SEG || segment_heads == 0 || s >= kLeast)) return {anchor, s};
            return y.with_local_copy([=](const auto* x, int stride) {
                return log_sum_scan<A>(Suffix::identity(), x, stride, nullptr, I, SEG ? segment_heads : 0);
            });
        }

        // Whether the first sum above 0 of each row that begins in the thread is accurate; a sum is
        // 0 if and only if all x are -inf. `begins`: the thread begins with such a sum.
        template <typename Y>
        __device__ bool is_accurate(bool begins, A scale, const Y& y, unsigned segment_heads) const
        {
            bool accurate = true;
#pragma unroll
            for (int i = I - 1; i >= 0; --i) {
                const bool first = begins && y(i) > -A(INFINITY);
                accurate = accurate && !(first && d[i] * scale < kLeast);
                begins = SEG && segment_heads & 1u << i ? true : begins && !first;
            }
            return accurate;
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(
            const Suffix& after, const X&, const Y& y, unsigned segment_heads, const Store& store) const
        {
            const A all = fmax(after.m, anchor), scale = Logcumsumexp<A>::ratio(anchor, all);
            A s = after.s * Logcumsumexp<A>::ratio(after.m, all);
            const bool begins = after.m == -A(INFINITY);
            if (!(all < A(INFINITY) && (begins || s >= kLeast) &&
                  ((!begins && (!SEG || segment_heads == 0)) || is_accurate(begins, scale, y, segment_heads)))) {
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
                return;
            }
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                A sums[N];
#pragma unroll
                for (int v = N - 1; v >= 0; --v) {
                    s = fma(d[c * N + v], scale, s);
                    sums[v] = add_log<kIs16Bit<Y>>(all, s);
                    if (SEG && segment_heads & 1u << (c * N + v)) s = A(0);
                }
                store(c, sums);
            }
        }
    };
};
