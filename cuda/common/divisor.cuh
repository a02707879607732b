// Division of many numbers by one, rounded as `/` does, without its branches. From the rounded 1 /
// b, two Newton steps q += (a - b q) / b make the quotient exact to half an ulp: the first brings q
// within an ulp, the second rounds it correctly (Markstein). If a step gives NaN, the first
// estimate is already the right infinity, zero or NaN.
#pragma once

template <typename A>
struct Divisor {
    // lift multiplies a and b: a power of two for a tiny b, whose inverse overflows; or it is the
    // rounded 1 / b, and b is 1.
    A b, inverse, lift;

    static __device__ Divisor of(A b)
    {
        constexpr A tiny = sizeof(A) == 4 ? 0x1p-100f : 0x1p-1000, up = sizeof(A) == 4 ? 0x1p64f : 0x1p100;
        const A lift = fabs(b) < tiny ? up : A(1);
        return {b * lift, A(1) / (b * lift), lift};
    }

    // divide() multiplies by the rounded 1 / b, and divides by 1.
    static __device__ Divisor reciprocal_of(A b) { return {A(1), A(1), A(1) / b}; }

    __device__ A divide(A a) const
    {
        a *= lift;
        const A estimate = a * inverse, near = fma(fma(-b, estimate, a), inverse, estimate),
            q = fma(fma(-b, near, a), inverse, near);
        return q == q ? q : estimate;
    }
};
