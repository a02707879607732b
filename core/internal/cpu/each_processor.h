/* Includes LOOPS once for each vector width: see vector.h. */
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

#define VECTOR 512
#define TARGET VECTOR_512
#define AT(name) name##_512
#include LOOPS
#undef VECTOR
#undef TARGET
#undef AT
#endif
#undef LOOPS
