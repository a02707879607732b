/* Includes LOOPS once for each vector width: see vector.h. NO_512 leaves out AVX-512. */
#define VECTOR VECTOR_PORTABLE
#define TARGET TARGET_PORTABLE
#define AT(name) name##_64
#include LOOPS
#undef VECTOR
#undef TARGET
#undef AT

#ifdef VECTOR_256
#define VECTOR 256
#define TARGET VECTOR_256
#define AT(name) name##_256
#include LOOPS
#undef VECTOR
#undef TARGET
#undef AT

#ifndef NO_512
#define VECTOR 512
#define TARGET VECTOR_512
#define AT(name) name##_512
#include LOOPS
#undef VECTOR
#undef TARGET
#undef AT
#endif
#endif
#undef LOOPS
