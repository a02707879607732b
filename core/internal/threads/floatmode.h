#ifndef STERNWAY_FLOATMODE_H
#define STERNWAY_FLOATMODE_H
#include <stdint.h>

/* The control bits of the floating-point unit that vector code and Go use: rounding, flushing of
   subnormal numbers, traps. */
#if defined(__SSE2__)
#include <xmmintrin.h>
/* Round to nearest, no flushing, all exceptions masked; the exception flags. */
enum { SW_DEFAULT_MODE = 0x1f80, SW_STATUS = 0x3f };
static inline unsigned sw_mode(void) { return _mm_getcsr() & ~(unsigned)SW_STATUS; }
static inline void sw_set_mode(unsigned mode) { _mm_setcsr(mode | (_mm_getcsr() & SW_STATUS)); }
#elif defined(__aarch64__)
enum { SW_DEFAULT_MODE = 0 };
static inline unsigned sw_mode(void) {
  uint64_t mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  return (unsigned)mode;
}
static inline void sw_set_mode(unsigned mode) { __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)mode)); }
#else
#include <fenv.h>
enum { SW_DEFAULT_MODE = FE_TONEAREST };
static inline unsigned sw_mode(void) { return (unsigned)fegetround(); }
static inline void sw_set_mode(unsigned mode) { fesetround((int)mode); }
#endif

/* Gives this thread the default mode, and returns the one that it had. */
static inline unsigned sw_enter_default_mode(void) {
  unsigned mode = sw_mode();
  if (mode != SW_DEFAULT_MODE) sw_set_mode(SW_DEFAULT_MODE);
  return mode;
}
#endif
