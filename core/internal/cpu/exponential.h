/* Exponentials and logarithms without a branch, so that a loop over lanes becomes vector code. */
#ifndef STERNWAY_EXPONENTIAL_H
#define STERNWAY_EXPONENTIAL_H
#include "vector.h"

INLINE uint64_t bits(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
INLINE double number(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }

/* 2^k for an integer k from -1022 to 1023. The sum has exponent 52, so its low bits are the integer
   k + 1023. */
INLINE double power(double k) { return number(bits(k + (0x1.8p52 + 1023)) << 52); }

/* exp(t + rest) for t <= 0 and a much smaller rest, as exp(k log 2 + r) with |r| <= log(2)/2. The
   Taylor series of exp(r) ends where terms are below 2^-56. The power of two is applied in two
   steps, so that subnormal results are rounded once. */
INLINE double exponential(double t, double rest) {
  rest = t < -746 ? 0 : rest;
  t = t < -746 ? -746 : t;
  double k = (t * 0x1.71547652b82fep0 + 0x1.8p52) - 0x1.8p52;
  double r = (t - k * 0x1.62e42feep-1) - (k * 0x1.a39ef35793c76p-33 - rest);
  double p = 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = 1 + (r + r * r * p);
  double normal = k < -1000 ? -1000 : k;
  return p * power(normal) * power(k - normal);
}

/* log(1 + t) for t >= 0. u = 1 + t is m 2^k with m around 1, and log(m) = 2 atanh(s), whose Taylor
   series ends where terms are below 2^-56. The rounding error of u is added to the result, divided
   by u, where that matters. */
INLINE double log_of_one_plus(double t) {
  const uint64_t root = 0x3fe6a09e667f3bcd; /* the bits of the square root of 1/2 */
  double u = 1 + t, rest = t - (u - 1);
  uint64_t exponent = (bits(u) - root) >> 52;
  double k = number(exponent | bits(0x1p52)) - 0x1p52, f = number(bits(u) - (exponent << 52)) - 1;
  double s = f / (2 + f), z = s * s;
  double p = 1.0 / 21;
  p = p * z + 1.0 / 19;
  p = p * z + 1.0 / 17;
  p = p * z + 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  rest = u >= 2 ? 0 : rest;
  return k * 0x1.62e42feep-1 + (2 * s + (2 * s * z * p + (k * 0x1.a39ef35793c76p-33 + rest)));
}
#endif
