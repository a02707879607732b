// The states of cumprod with extended range: products, and suffix maps that are right in the
// presence of infinities.
//
// Products of threads may exceed the range of the accumulator. If the products of a row stay in the
// range of float32 element by element, the product of any of its parts, a quotient of two of them,
// is in the range of float64; for float64 a product has a mantissa and an exponent.
#pragma once

#include "scan/state/prefix_suffix.cuh"

// The exponent of a number. float32: -127 for 0 and subnormals, 128 for infinities and NaN;
// float64: -1023 and 1024.
__device__ inline int exponent_of(float x) { return (__float_as_int(x) >> 23 & 0xff) - 127; }
__device__ inline int exponent_of(double x) { return (__double2hiint(x) >> 20 & 0x7ff) - 1023; }
__device__ inline float mantissa_of(float x) { return __int_as_float(__float_as_int(x) & 0x807fffff | 0x3f800000); }
// Of one integer: nvcc 13.0 loses the low word of two behind a branch.
__device__ inline double mantissa_of(double x)
{
    return __longlong_as_double(__double_as_longlong(x) & 0x800fffffffffffff | 0x3ff0000000000000);
}

// 2^k; 0 for the least exponent, infinity for the largest.
template <typename A>
__device__ A power_of_two(int k)
{
    if constexpr (sizeof(A) == 4)
        return __int_as_float((k + 127) << 23);
    else
        return __hiloint2double((k + 1023) << 20, 0);
}

// A product with 0 * inf = 0: a factor of exactly 0 cuts off infinities, but not NaN.
template <typename A>
__device__ A times(A a, A b)
{
    const A p = a * b;
    if (p == p || a != a || b != b) return p;
    return A(0);
}

// A product that is 0 only if a factor is 0: underflow gives the least subnormal, which does not
// cut off infinities.
__device__ inline double nonzero_product(double a, double b)
{
    const double p = a * b;
    if (fabs(p) > 0.0) return p;
    return p == 0.0 && a != 0.0 && b != 0.0 ? copysign(0x1p-1074, p) : times(a, b);
}

template <typename A> struct Product;

template <>
struct Product<float> {
    double v;

    static __device__ Product identity() { return one(); }
    static __device__ Product one() { return {1.0}; }
    static __device__ Product zero() { return {0.0}; }
    static __device__ Product of(double x) { return {x}; }
    __device__ float value() const { return static_cast<float>(v); }
    __device__ double as_double() const { return v; }
    __device__ double signed_part() const { return v; }
    __device__ bool is_infinite_or_nan() const { return !(fabs(v) < INFINITY); }
};

__device__ inline Product<float> operator*(Product<float> a, Product<float> b) { return {nonzero_product(a.v, b.v)}; }
__device__ inline Product<float> operator+(Product<float> a, Product<float> b) { return {a.v + b.v}; }
__device__ inline Product<float> operator/(Product<float> a, Product<float> b) { return {a.v / b.v}; }
// The product of IEEE 754: 0 * inf is NaN.
__device__ inline Product<float> ieee_product(Product<float> a, Product<float> b) { return {a.v * b.v}; }
// For products of few float32 factors, which do not underflow in float64.
__device__ inline Product<float> times(Product<float> a, Product<float> b) { return {times(a.v, b.v)}; }

// m * 2^e, where m is 0, an infinity, NaN, or has 1 <= |m| < 2. Zeros have a very small exponent
// and infinities a very large one, so that the larger exponent of a sum belongs to the dominant
// term.
template <>
struct Product<double> {
    double m;
    i64 e;

    static constexpr int kZero = -(1 << 24), kInfinite = 1 << 22, kBias = 1023;

    static __device__ Product identity() { return one(); }
    static __device__ Product one() { return {1.0, 0}; }
    static __device__ Product zero() { return {0.0, kZero}; }

    static __device__ __noinline__ Product of(double x, i64 e = 0)
    {
        if (x == 0.0) return {x, kZero};
        int f = exponent_of(x) + kBias;
        if (f == 2 * kBias + 1) return {x, kInfinite};
        if (f == 0) {
            x *= 0x1p64;
            f = exponent_of(x) + kBias - 64;
        }
        e += f - kBias;
        if (e >= kInfinite) return {copysign(INFINITY, x), kInfinite};
        if (e <= -kInfinite) return {copysign(0.0, x), kZero};
        return {mantissa_of(x), e};
    }

    // Rounded once.
    __device__ double value() const
    {
        constexpr i64 most = 2 * (kBias - 1);
        const int k = static_cast<int>(e < -most ? -most : e > most ? most : e), half = k / 2;
        return m * power_of_two<double>(half) * power_of_two<double>(k - half);
    }
    __device__ double as_double() const { return value(); }
    __device__ double signed_part() const { return m; }
    __device__ bool is_infinite_or_nan() const { return e >= kInfinite; }
};

__device__ inline Product<double> operator*(Product<double> a, Product<double> b)
{
    return Product<double>::of(times(a.m, b.m), a.e + b.e);
}
__device__ inline Product<double> operator/(Product<double> a, Product<double> b)
{
    return Product<double>::of(a.m / b.m, a.e - b.e);
}
__device__ inline Product<double> times(Product<double> a, Product<double> b) { return a * b; }
__device__ inline Product<double> ieee_product(Product<double> a, Product<double> b)
{
    return Product<double>::of(a.m * b.m, a.e + b.e);
}

__device__ __noinline__ inline Product<double> operator+(Product<double> a, Product<double> b)
{
    // a power of two that is never 0, so that infinities survive
    const auto power = [](i64 k) { return __hiloint2double(max(static_cast<int>(k) + 1023, 1) << 20, 0); };
    const i64 e = max(a.e, b.e);
    return Product<double>::of(a.m * power(max(a.e - e, i64(-2000))) + b.m * power(max(b.e - e, i64(-2000))), e);
}

// ---------------------------------------------------------------------------------------- suffixes

// A step map. With infinities the suffix map is not affine: an infinite factor maps dy + Q to -inf,
// 0 (or NaN) or inf. Composed with any maps it stays a step function: v[0], v[1], v[2] for t + Q
// negative, zero, positive. At most one finite value occurs in v.
struct StepMap {
    double t, v[3];

    __device__ double operator()(double q) const
    {
        const double u = t + q;
        return u != u ? u : u < 0 ? v[0] : u > 0 ? v[2] : v[1];
    }
};

// Q -> a Q + b with finite a and b or, if a is NaN, a step map: b is its finite number. For float32
// the payload of the NaN holds t, as a float32, and a 2-bit code of each v; for float64 t is in a.e
// and the codes are in b.e. Codes: 0 -inf, 1 inf, 2 NaN, 3 the finite number.
template <typename A>
struct ProductSuffix {
    Product<A> a, b;

    static __device__ ProductSuffix identity() { return {Product<A>::one(), Product<A>::zero()}; }
    __device__ bool stepped() const { return a.signed_part() != a.signed_part(); }
    __device__ Product<A> at_zero() const { return stepped() ? at(*this, 0.0) : b; }  // the map of Q = 0
    __device__ StepMap steps() const;
    static __device__ ProductSuffix of(const StepMap& s);
    static __device__ __noinline__ Product<A> at(ProductSuffix t, double q)
    {
        return t.stepped() ? Product<A>::of(t.steps()(q)) : t.b + t.a * Product<A>::of(q);
    }
};

template <typename A>
__device__ StepMap ProductSuffix<A>::steps() const
{
    StepMap s;
    int what;
    if constexpr (sizeof(A) == 4)
        what = __double2hiint(a.v), s.t = __int_as_float(__double2loint(a.v));
    else
        what = static_cast<int>(b.e), s.t = __longlong_as_double(a.e);
#pragma unroll 1
    for (int i = 0; i < 3; ++i, what >>= 2)
        s.v[i] = what & 2 ? what & 1 ? b.signed_part() : NAN : what & 1 ? INFINITY : -INFINITY;
    return s;
}

template <typename A>
__device__ ProductSuffix<A> ProductSuffix<A>::of(const StepMap& s)
{
    double number = 0.0;
    int what = 0;
#pragma unroll 1
    for (int i = 2; i >= 0; --i) {
        const double v = s.v[i];
        const bool finite = fabs(v) < INFINITY;
        if (finite) number = v;
        what = what << 2 | (finite ? 3 : v != v ? 2 : v > 0);
    }
    if (what == 63 && fabs(s.t) < INFINITY) return {Product<A>::zero(), Product<A>::of(number)};
    if constexpr (sizeof(A) == 4)
        return {{__hiloint2double(0x7ff80000 | what, __float_as_int(static_cast<float>(s.t)))}, {number}};
    else
        return {{NAN, __double_as_longlong(s.t)}, {number, what}};
}

// l after r; needed only if one of them is a step map or their composition leaves the range.
template <typename A>
__device__ __noinline__ ProductSuffix<A> composed(ProductSuffix<A> l, ProductSuffix<A> r)
{
    using P = Product<A>;
    const P a = l.a * r.a, b = l.b + ieee_product(l.a, r.b);
    if (!a.is_infinite_or_nan() && !b.is_infinite_or_nan()) return {a, b};
    StepMap s;
    if (r.stepped()) {
        s = r.steps();
    } else if (l.a.signed_part() == 0 || r.a.signed_part() == 0) {  // the map does not depend on Q
        const double q = r.b.as_double();
        s = {0.0, {q, q, q}};
    } else {  // The step is at the sign change of t + b + a Q. A product beyond the range steps to the infinities.
        const double up = copysign(INFINITY, l.a.signed_part());
        s = l.stepped() ? l.steps() : StepMap{(l.b / l.a).as_double(), {-up, 0.0, up}};
        const P sum = P::of(s.t) + r.b;
        const double t = (sum / r.a).as_double();
        constexpr double most = sizeof(A) == 4 ? 0x1.fffffep127 : 0x1.fffffffffffffp1023,
                         least = sizeof(A) == 4 ? 0x1p-149 : 0x1p-1074;
        // A finite nonzero threshold becomes neither 0 nor infinite; a negative slope reverses the
        // steps.
        s.t = sum.signed_part() == 0 || !(fabs(s.t) < INFINITY) ? t : copysign(fmin(fmax(fabs(t), least), most), t);
        if (r.a.signed_part() < 0) {
            const double v = s.v[0];
            s.v[0] = s.v[2];
            s.v[2] = v;
        }
        if (!b.is_infinite_or_nan()) s.t = 0.0, s.v[1] = b.as_double();
        return ProductSuffix<A>::of(s);
    }
#pragma unroll 1
    for (int i = 0; i < 3; ++i) s.v[i] = ProductSuffix<A>::at(l, s.v[i]).as_double();
    return ProductSuffix<A>::of(s);
}

// The map of n elements of a thread, whatever their values. Nothing passes a segment head.
template <typename A>
__device__ __noinline__ ProductSuffix<A> of_elements(const A* x, const A* y, int n, unsigned segment_heads)
{
    using P = Product<A>;
    ProductSuffix<A> all = {P::one(), P::zero()};
#pragma unroll 1
    for (int i = n - 1; i >= 0; --i) {
        const P p = P::of(x[i]);
        const bool finite = fabs(x[i]) < A(INFINITY) && fabs(y[i]) < A(INFINITY);
        const StepMap steps = {
            y[i], {times<double>(x[i], -INFINITY), times<double>(x[i], 0.0), times<double>(x[i], INFINITY)}};
        all = composed<A>(finite ? ProductSuffix<A>{p, p * P::of(y[i])} : ProductSuffix<A>::of(steps), all);
        if (segment_heads >> i & 1) all = {P::zero(), P::zero()};
    }
    return all;
}
