// cumprod, fast path: states of two or three numbers, combined in a few instructions. It is right
// for rows that stay in range, as most do, and reports rejections for the others.
//
// A product of n numbers has n - 1 roundings in any order of combining, most of them within
// threads. EXACT compensates those: the rounding error of a thread's product is carried along.
// 16-bit results do not need it.
#pragma once

#include "scan/kinds/cumprod.cuh"

// x 2^e, rounded once if the result is in range; 0 if e is far below the range.
template <typename A>
__device__ A scaled(A x, int e)
{
    constexpr int min_exponent = sizeof(A) == 4 ? -254 : -2046;
    const int all = max(e, min_exponent), half = all >> 1;
    return x * power_of_two<A>(half) * power_of_two<A>(all - half);
}

// The exponent of 0; its sum with any exponent stays far below the range.
constexpr int kZeroExponent = -(1 << 29);

// A product of threads m * 2^e, 1 <= |m| < 2, which never leaves the range.
template <typename A>
struct ScaledProduct {
    A m;
    int e;

    static __device__ ScaledProduct identity() { return one(); }
    static __device__ ScaledProduct one() { return {A(1), 0}; }

    // Of 0, or of a normal number.
    static __device__ ScaledProduct of(A product, A rounding_error = A(0))
    {
        product += rounding_error;
        const int e = exponent_of(product);
        return {mantissa_of(product), e == exponent_of(A(0)) ? kZeroExponent : e};
    }

    __device__ A value() const { return scaled(m, e); }
    __device__ A apply(A x) const { return value() * x; }
    __device__ ScaledProduct operator*(const ScaledProduct& r) const
    {
        ScaledProduct all = {m * r.m, max(e + r.e, kZeroExponent)};
        if (fabs(all.m) >= A(2)) all.m *= A(0.5), ++all.e;
        return all;
    }
};

// In float64 the compensation goes on between threads: the product is (m + rounding_error) * 2^e.
template <>
struct ScaledProduct<double> {
    double m;
    float rounding_error;
    int e;

    static __device__ ScaledProduct identity() { return one(); }
    static __device__ ScaledProduct one() { return {1.0, 0.0f, 0}; }
    static __device__ ScaledProduct of(double product, double rounding_error = 0.0)
    {
        const int e = exponent_of(product);
        return {
            mantissa_of(product), static_cast<float>(rounding_error * power_of_two<double>(-e)),
            e == exponent_of(0.0) ? kZeroExponent : e};
    }

    __device__ double value() const { return scaled(m + rounding_error, e); }
    __device__ double apply(double x) const
    {
        return fma(scaled(m, e), x, scaled(static_cast<double>(rounding_error), e) * x);
    }
    __device__ ScaledProduct operator*(const ScaledProduct& r) const
    {
        const double p = m * r.m,
                     error = fma(
                         m, static_cast<double>(r.rounding_error),
                         fma(static_cast<double>(rounding_error), r.m, fma(m, r.m, -p)));
        ScaledProduct all = {p, static_cast<float>(error), max(e + r.e, kZeroExponent)};
        if (fabs(p) >= 2.0) all.m *= 0.5, all.rounding_error *= 0.5f, ++all.e;
        return all;
    }
};

// The product of n elements since their last segment head, at any magnitude.
template <typename A, typename T>
__device__ __noinline__ ScaledProduct<A> product_of(const T* x, int stride, int n, unsigned segment_heads)
{
    constexpr int up = sizeof(A) == 4 ? 127 : 1023;
    ScaledProduct<A> all = ScaledProduct<A>::one();
#pragma unroll 1
    for (int i = 0; i < n; ++i, x += stride, segment_heads >>= 1) {
        if (segment_heads & 1) all = ScaledProduct<A>::one();
        const A one = widen<A>(*x);
        const bool small = exponent_of(one) == -up;  // subnormal
        ScaledProduct<A> next = ScaledProduct<A>::of(small ? one * power_of_two<A>(up) : one);
        if (small) next.e -= up;
        all = all * next;
    }
    return all;
}

// Q -> a Q + b.
template <typename A>
struct FastProductSuffix {
    A a, b;

    static __device__ FastProductSuffix identity() { return {A(1), A(0)}; }
};

// The fast path accepts a row if all of its threads are in range, or all have bounded inputs.
//
// In range: products from the start of the row, and from the start of a thread, to each element
// stay far from the ends of the range. Products of the elements between are quotients of two of
// these, so they are in range, too.
//
// Bounded inputs: |x|, |dy|, the suffixes R and the prefix w (from the start of the row, and from
// the start of a thread) are bounded above. Then products within a thread may underflow, with an
// absolute error of at most 2^-149; w has an exponent of its own between threads. The error is
// multiplied by at most 2^85, so that dx is off by at most 2^-64. That is small beside the first dx
// of the row, which is at least kMinFirstDx. Without SEG the largest of the first N dx of the
// thread in which the row begins is checked in its place.
template <typename A, bool EXACT>
struct FastCumprod : SameCarry<FastProductSuffix<A>> {
    static constexpr bool NEEDS_PREFIX = true, SUFFIX_NEEDS_PREFIX = false, ACCEPTS_BOUNDED = true,
                          FLOAT = sizeof(A) == 4;
    static constexpr bool IS_FAST = true, PREFIX_FROM_SUFFIX = true, HAS_EXCLUSIVE = true;
    // In range: exponents of products, from the start of a thread (kMinThreadExp, kMaxThreadExp)
    // and from the start of the row (kMinRowExp, kMaxRowExp).
    static constexpr int kMinThreadExp = FLOAT ? -42 : -320, kMaxThreadExp = FLOAT ? 18 : 192,
                         kMinRowExp = FLOAT ? -80 : -600, kMaxRowExp = FLOAT ? 40 : 400;
    // Products with exponents below kSubnormalExp are recomputed by slow_product. `prefix` sees
    // only the final product of each chain and uses kUnsafeExp instead: a smaller one may have been
    // subnormal on the way.
    static constexpr int kSubnormalExp = FLOAT ? -126 : -1022, kUnsafeExp = !FLOAT ? -480 : EXACT ? -60 : -31;
    // Bounded inputs: limits of the exponent of w between threads, of x, of dy, of R (checked at
    // every fourth element), and of the first dx.
    static constexpr int kMaxPrefixExp = FLOAT ? 26 : 150;
    static constexpr A kMaxAbsX = FLOAT ? A(8) : A(0x1p32), kMaxAbsDy = FLOAT ? A(0x1p18) : A(0x1p200),
                       kMaxAbsSuffix = FLOAT ? A(0x1p29) : A(0x1p230);
    static constexpr A kMinFirstDx = FLOAT ? A(0x1p-40) : A(0x1p-300);
    using Tuning = CumprodTuning;
    using Number = A;
    using Value = A;
    using Prefix = ScaledProduct<A>;
    using Suffix = FastProductSuffix<A>;

    static __device__ Prefix combine(const Prefix& l, const Prefix& r) { return l * r; }
    static __device__ Suffix combine(const Suffix& l, const Suffix& r) { return {l.a * r.a, fma(l.a, r.b, l.b)}; }
    static __device__ A pad(const ScanArgs&) { return A(1); }
    static __device__ unsigned rejections(const Prefix& h)
    {
        return h.e >= kMinRowExp && h.e < kMaxRowExp ? 0 : kRejectRange;
    }

    template <int I, int N, bool SEG>
    struct ThreadScan {
        A vector_prefix[I / N];  // product before every N elements: in the thread; after `enter`, in the row
        Prefix product;  // since the last segment head
        unsigned rejections;

        __device__ void begin(const ScanArgs&) {}

        // The product since the last segment head if an intermediate product may be subnormal.
        template <typename X>
        static __device__ Prefix slow_product(const X& x, unsigned segment_heads)
        {
            if (x.has_zero(SEG && segment_heads ? 31 - __clz(segment_heads) : 0)) return Prefix::of(A(0));
            return x.with_local_copy([=](const auto* first, int stride) {
                return product_of<A>(first, stride, I, SEG ? segment_heads : 0);
            });
        }

        // The prefix for an upsweep. Range checks of single elements are left to the downsweep.
        template <typename X>
        __device__ Prefix prefix(const X& x, unsigned)
        {
            static_assert(!SEG);
            constexpr int CHAINS = EXACT ? 1 : 4;  // independent chains shorten the dependency
            rejections = x.exceeds(kMaxAbsX) ? kRejectMagnitude : 0;
            A p[CHAINS], rounding_error = A(0);
#pragma unroll
            for (int i = 0; i < I; ++i) {
                A& chain = p[i % CHAINS];
                const A q = i < CHAINS ? x(i) : chain * x(i);
                if (EXACT && i > 0) rounding_error = fma(rounding_error, x(i), fma(chain, x(i), -q));
                chain = q;
            }
            A least = fabs(p[0]);
#pragma unroll
            for (int k = 1; k < CHAINS; ++k) least = fmin(least, fabs(p[k]));
            if (rejections || !(least >= power_of_two<A>(kUnsafeExp))) return slow_product(x, 0);
            if constexpr (EXACT)
                return Prefix::of(p[0], rounding_error);
            else
                return Prefix::of((p[0] * p[1]) * (p[2] * p[3]));
        }

        // The suffix, and the prefix with it: Q -> sum_i p_i dy_i + p Q, where p_i are the products
        // so far, up to the first segment head.
        template <typename X, typename Y>
        __device__ Suffix suffix(const X& x, const Y& y, unsigned segment_heads)
        {
            A p = A(1), rounding_error = A(0), sum = A(0);
            MagnitudeRange<A> range;
            const unsigned preceding = bits_below_lowest(segment_heads);
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (i % N == 0) vector_prefix[i / N] = p;
                if (SEG && segment_heads & 1u << i) p = A(1), rounding_error = A(0);
                const A q = i == 0 ? x(i) : p * x(i);
                if (EXACT && i > 0) rounding_error = fma(rounding_error, x(i), fma(p, x(i), -q));
                p = q;
                range.add(p);
                if (!SEG || preceding & 1u << i) sum = fma(p, y(i), sum);
            }
            rejections = !range.at_most(kMaxThreadExp) ? kRejected : range.at_least(kMinThreadExp) ? 0 : kRejectRange;
            product = Prefix::of(p, rounding_error);
            if (range.at_least(kSubnormalExp)) return {p + rounding_error, sum};
            product = slow_product(x, segment_heads);
            return {product.value(), sum};
        }

        template <typename X, typename Y>
        __device__ void enter(const Prefix& before, const X&, const Y& y, unsigned segment_heads)
        {
            rejections |= FastCumprod::rejections(before) |
                          (y.exceeds(kMaxAbsDy) || before.e > kMaxPrefixExp ? kRejectMagnitude : 0);
            const unsigned preceding = bits_below_lowest(segment_heads);
#pragma unroll
            for (int c = 0; c < I / N; ++c)
                if (!SEG || c == 0 || preceding & 1u << (c * N - 1)) vector_prefix[c] = before.apply(vector_prefix[c]);
        }

        // Whether a row begins with a dx below kMinFirstDx.
        template <typename DX>
        static __device__ bool begins_small(const DX& dx, unsigned segment_heads)
        {
            bool some = false;
#pragma unroll
            for (int i = 0; i < I; ++i) some = some || (segment_heads & 1u << i && fabs(dx(i)) < kMinFirstDx);
            return some;
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(const Suffix& after, const X& x, const Y& y, unsigned segment_heads, const Store& store)
        {
            A t = after.b, largest_first_dx = A(0), largest_suffix = fabs(t);
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                A w[N], dx[N], p = vector_prefix[c];
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    if (SEG && segment_heads & 1u << (c * N + i)) p = A(1);
                    w[i] = p;
                    p *= x(c * N + i);
                }
#pragma unroll
                for (int i = N - 1; i >= 0; --i) {
                    const A r = y(c * N + i) + t;
                    dx[i] = w[i] * r;
                    t = x(c * N + i) * r;
                    if (i % 4 == 0) largest_suffix = fmax(largest_suffix, fabs(t));
                    if (!SEG && c == 0) largest_first_dx = fmax(largest_first_dx, fabs(dx[i]));
                    if (SEG && segment_heads & 1u << (c * N + i)) t *= A(0);  // NaN and infinities stay, as NaN
                }
                store(c, dx);
            }
            if (x.exceeds(kMaxAbsX) || !(largest_suffix <= kMaxAbsSuffix) ||
                (!SEG && segment_heads && largest_first_dx < kMinFirstDx))
                rejections |= kRejectMagnitude;
            if (!(t * A(0) == A(0))) rejections = kRejected;
        }
    };
};
