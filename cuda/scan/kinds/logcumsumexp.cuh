// logcumsumexp, general path: w = e^{x_i - y_i}, c = e^{y_{i-1} - y_i}.
#pragma once

#include "scan/state/prefix_suffix.cuh"

constexpr float kLog2e = 1.44269504f;

// e^{x - from} with a relative error of a few 2^-23 for small x - from; 0 below e^-87. The
// rounding error of the product with log2 e is compensated.
__device__ inline float exp_of(float x, float from)
{
    x -= from;
    asm("max.NaN.f32 %0, %0, 0fC3160000;" : "+f"(x));  // -150
    const float power = x * kLog2e, rest = fmaf(power, -0x1.62e43p-1f, x);
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(power));
    return fmaf(e, fmaf(power, 0x1.05c610p-29f, rest), e);
}

// Relative error of about an ulp: the rounding error of x - from, which grows with their distance,
// is compensated.
__device__ __noinline__ inline double exp_of(double x, double from)
{
    const double d = x - from, shift = d - x, error = (x - (d - shift)) - (from + shift), e = exp(d), rest = e * error;
    return rest - rest == 0.0 ? e + rest : e;
}

// e^{x - base}. In float32 its error is at most 2^-22 beside 1 for x <= base, and grows with x
// above it: sums of such numbers, and results of 16 bits, need no more.
__device__ inline float exp_below(float x, float base)
{
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"((x - base) * kLog2e));
    return e;
}
__device__ inline double exp_below(double x, double base) { return exp_of(x, base); }

__device__ inline float inverse(float s)  // of a normal number or NaN
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(s));
    return r;
}
__device__ inline double inverse(double s)
{
    double r;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(s));
    const double e = fma(-s, r, 1.0);
    return fma(r, fma(e, e, e), r);
}

template <typename A, bool EXACT>
struct FastLogcumsumexp;

template <typename A>
struct LogcumsumexpPrefix {
    static __device__ LogcumsumexpPrefix identity() { return {-A(INFINITY), A(0)}; }

    // The base, which is the largest x or at most log kMostSum below it, and the sum of e^{x - m};
    // the count of such x if m is +inf, 0 if m is -inf.
    A m, s;
};

template <typename A>
struct LogcumsumexpSuffix {
    static __device__ LogcumsumexpSuffix identity() { return {A(NAN), A(0)}; }

    A m, z;  // z = sum dy_i e^{m - y_i}, where m is the base before them; NaN in the identity
};

// The elements of a thread that belong to one segment share a base, the first of them:
//     S_i = sum_{j<=i} e^{x_j - base}    dx_k = e^{x_k - base} Z_k    Z_k = sum_{i>=k} dy_i / S_i
// so that errors do not accumulate along the row. The first segment of a thread continues one of
// threads before; it takes the base of the state that enters if that is larger. A segment whose x
// rise far above its base goes from element to element instead, with the largest x so far:
//     S_i = S_{i-1} e_i + e^{x_i - m_i}    Z_k = dy_k / S_k + e_{k+1} Z_{k+1}
//     e_i = e^{m_{i-1} - m_i}
// No bit of a segment depends on another one.
template <typename A>
struct Logcumsumexp : SameCarry<LogcumsumexpSuffix<A>> {
    static constexpr bool NEEDS_PREFIX = true, SUFFIX_NEEDS_PREFIX = true, KEEPS_ELEMENTS = true, HAS_EXCLUSIVE = true;
    template <typename T>
    using FastPathFor = FastLogcumsumexp<A, (sizeof(T) > 2)>;
    using Tuning = LogcumsumexpTuning;
    using Number = A;
    using Value = A;
    using Prefix = LogcumsumexpPrefix<A>;
    using Suffix = LogcumsumexpSuffix<A>;

    // e^{low - high}, 1 for equal infinities. Without a branch in float32.
    static __device__ A ratio(A low, A high)
    {
        if constexpr (sizeof(A) == 8)
            return low == high ? A(1) : exp_of(low, high);
        else
            return exp_of(low == high ? A(0) : low - high, A(0));
    }

    static __device__ Prefix combine(const Prefix& l, const Prefix& r)
    {
        const bool right = r.m > l.m;
        const A f = ratio(right ? l.m : r.m, right ? r.m : l.m);
        return {right ? r.m : l.m, right ? r.s + l.s * f : l.s + r.s * f};
    }
    static __device__ Suffix combine(const Suffix& l, const Suffix& r)
    {
        if (l.m != l.m) return r;
        return {l.m, r.z == A(0) ? l.z : l.z + r.z * ratio(l.m, r.m)};
    }
    static __device__ A pad(const ScanArgs&) { return -A(INFINITY); }

    // One element: the next state; d = e^{x - m}, and e, the factor of the previous sum. Not
    // inlined: long and seldom run.
    struct Step {
        Prefix h;
        A d, e;
    };
    static __device__ __noinline__ Step step(Prefix h, A x)
    {
        const A m = fmax(h.m, x), d = x == -A(INFINITY) ? A(0) : ratio(x, m), e = ratio(h.m, m);
        return {{m, h.s * e + d}, d, e};
    }

    // Replaces x by d and y by dy / S, and finds e, of those of n elements of a thread whose bits
    // are set. Returns the state after the last one; `before` is the one before the first segment.
    static __device__ __noinline__ Prefix steps(
        Prefix before, A* x, A* y, A* e, int n, unsigned segment_heads, unsigned bits)
    {
        Prefix h = before;
#pragma unroll 1
        for (int i = 0; i < n; ++i) {
            if (segment_heads >> i & 1) h = Prefix::identity();
            if (!(bits >> i & 1)) continue;
            const Step next = step(h, x[i]);
            h = next.h;
            x[i] = next.d;
            e[i] = next.e;
            y[i] = h.s == A(0) ? A(0) : y[i] / h.s;
        }
        return h;
    }

    // The lowest x but -inf, whose exponential relative to it is 0.
    static constexpr A kLowest = sizeof(A) == 4 ? A(-0x1.fffffep127) : A(-0x1.fffffffffffffp1023);
    // The largest sum of exponentials relative to a base, which keeps the error of x - base small.
    static constexpr A kMostSum = sizeof(A) == 4 ? A(0x1p40) : A(0x1p300);

    template <int I, int N, bool SEG>
    struct ThreadScan {
        A d[I], t[I];             // e^{x_i - base}, dy_i / S_i; x_i and dy_i of `sequential` elements
        A first_base, last_base;  // of the first and of the last segment of the thread
        Prefix before;            // what enters
        unsigned sequential;         // elements of segments that go from element to element

        __device__ void begin(const ScanArgs&) {}

        static __device__ bool begins(unsigned segment_heads, int i) { return segment_heads & 1u << i; }
        __device__ bool is_sequential(int i) const { return sequential & 1u << i; }

        template <typename X>
        __device__ Prefix prefix(const X& x, unsigned segment_heads)
        {
            A base = fmax(x(0), kLowest), s = A(0), s_before = A(0);  // of this segment, of those before it
            first_base = base;
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (begins(segment_heads, i)) base = fmax(x(i), kLowest), s_before += s, s = A(0);
                d[i] = kIs16Bit<X> ? exp_below(x(i), base) : exp_of(x(i), base);
                s += d[i];
            }
            last_base = base;
            sequential = 0;
            if (s + s_before <= kMostSum) return {s == A(0) ? -A(INFINITY) : base, s};
            sequential = too_large(segment_heads);
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (is_sequential(i)) d[i] = x(i);
                t[i] = A(0);
            }
            if (!is_sequential(I - 1)) return {s == A(0) ? -A(INFINITY) : base, s};
            A ds[I], ts[I], es[I];
            return steps(Prefix::identity(), ds, ts, es, segment_heads);
        }

        // The elements of segments whose sums are too large, or NaN.
        __device__ unsigned too_large(unsigned segment_heads) const
        {
            unsigned all = 0, segment = 0;
            A s = A(0);
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (begins(segment_heads, i)) segment = 0, s = A(0);
                s += d[i];
                segment |= 1u << i;
                if (!(s <= kMostSum)) all |= segment;
            }
            return all;
        }

        template <typename X, typename Y>
        __device__ void enter(const Prefix& all_before, const X&, const Y& y, unsigned segment_heads)
        {
            // The elements before the first segment head are scaled to the base of their sums.
            before = all_before;
            const A own_base = first_base;
            first_base = fmax(before.m, own_base);
            if (segment_heads == 0) last_base = first_base;
            const A s = before.s * ratio(before.m, first_base), scale = ratio(own_base, first_base);
            if (!sequential) return divide<false>(s, scale, y, segment_heads);
            divide<true>(s, scale, y, segment_heads);
            if (is_sequential(0)) first_base = before.m;
            A ds[I], ts[I], es[I];
            if (is_sequential(I - 1)) last_base = steps(before, ds, ts, es, segment_heads).m;
        }

        // Finds t, given the sum before the thread and the scale of the elements that continue it.
        template <bool HAS_SEQUENTIAL, typename Y>
        __device__ void divide(A s, A scale, const Y& y, unsigned segment_heads)
        {
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (begins(segment_heads, i)) s = A(0), scale = A(1);
                const bool is_kept = HAS_SEQUENTIAL && is_sequential(i);
                if (!is_kept) d[i] *= scale;
                s += d[i];
                t[i] = is_kept ? A(y(i)) : s == A(0) ? A(0) : y(i) * inverse(s);
            }
        }

        // Finds d, t and e of all elements, and the state after the last of the `sequential` ones.
        __device__ Prefix steps(const Prefix& from, A (&ds)[I], A (&ts)[I], A (&es)[I], unsigned segment_heads) const
        {
#pragma unroll
            for (int i = 0; i < I; ++i) ds[i] = d[i], ts[i] = t[i], es[i] = A(1);
            return Logcumsumexp::steps(from, ds, ts, es, I, segment_heads, sequential);
        }

        // Calls each(i, d_i, Z_i), from the last element to the first, and returns the Z that goes
        // on to the element before.
        template <typename Each>
        __device__ A for_each_sum(A z, unsigned segment_heads, const Each& each) const
        {
            if (sequential) {
                A ds[I], ts[I], es[I];
                steps(before, ds, ts, es, segment_heads);
#pragma unroll
                for (int i = I - 1; i >= 0; --i) {
                    z += ts[i];
                    each(i, ds[i], z);
                    z = begins(segment_heads, i) ? A(0) : z * es[i];
                }
                return z;
            }
#pragma unroll
            for (int i = I - 1; i >= 0; --i) {
                z += t[i];
                each(i, d[i], z);
                if (begins(segment_heads, i)) z = A(0);
            }
            return z;
        }

        template <typename X, typename Y>
        __device__ Suffix suffix(const X&, const Y&, unsigned segment_heads) const
        {
            const A z = for_each_sum(A(0), segment_heads, [](int, A, A) {});
            return {before.m, z * ratio(before.m, first_base)};
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(const Suffix& after, const X&, const Y&, unsigned segment_heads, const Store& store)
        {
            A z = after.m != after.m ? A(0) : after.z, dx[N];
            if (z != A(0)) z *= ratio(last_base, after.m);
            for_each_sum(z, segment_heads, [&](int i, A exponential, A sum) {
                dx[i % N] = exponential * sum;
                if (i % N == 0) store(i / N, dx);
            });
        }
    };
};
