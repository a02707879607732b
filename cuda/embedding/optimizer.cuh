// The numbers of an optimizer, and stochastic rounding.
#pragma once

#include "embedding/args.cuh"

// Counts a run in the numbers of the optimizer, and forms the step size of Adam.
__device__ inline void advance(double* options)
{
    const double t = options[kOptionStep] += 1;
    options[kOptionDraw] += 1;
    const double correction = sqrt(1 - pow(options[kOptionBeta2], t)) / (1 - pow(options[kOptionBeta1], t));
    options[kOptionStepSize] = options[kOptionLr] * correction;
}

// A hash of 64 bits (splitmix64).
__device__ inline unsigned long long hashed(unsigned long long x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// The random numbers of a run: 32 bits for an element of the table. Two adjacent elements share 64.
struct Random {
    static constexpr unsigned long long kStep = 0x9e3779b97f4a7c15ull;
    unsigned long long stream;

    __device__ explicit Random(const double* options)
        : stream(hashed((static_cast<unsigned long long>(options[kOptionSeed]) << 32
                         ^ static_cast<unsigned long long>(options[kOptionDraw])) * kStep)) {}

    __device__ u32 bits(i64 element) const
    {
        const unsigned long long x = hashed(stream + (element >> 1) * kStep);
        return static_cast<u32>(element & 1 ? x >> 32 : x);
    }
};

// One of the two neighbors of x in T, at random (stochastic rounding): the farther one with the
// probability by which the nearer one is wrong.
template <typename T>
__device__ T rounded_at_random(float x, u32 random)
{
    const T nearer = static_cast<T>(x);
    unsigned short bits;
    memcpy(&bits, &nearer, sizeof bits);
    const float value = widen<float>(nearer);
    bits += fabsf(value) > fabsf(x) ? -1 : 1;
    T farther;
    memcpy(&farther, &bits, sizeof bits);
    const float chance = (x - value) / (widen<float>(farther) - value);
    return static_cast<float>(random >> 8) * 0x1p-24f < chance ? farther : nearer;
}
