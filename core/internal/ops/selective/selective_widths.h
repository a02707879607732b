/* Includes the loops of selective scans for both types of arithmetic. selective.c includes this
   header once per vector width. */
#define FOR(name) AT(name##_f32)
#define WIDE float
#define BITS int32_t
#define SERIES EXP_SERIES_F32
#define ROUNDER 0x1.8p23f
#define BIAS 127
#define FRACTION 23
#define LOWEST -104
#define HIGHEST 89
#define LOG2_HIGH 0x1.62e4p-1f
#define LOG2_LOW 0x1.7f7d1cp-20f
#define SUFFIXED(name) name##_ps
#define MASK_512 _mm512_cmp_ps_mask
#include "selective_vectors.h"
#include "selective_loops.h"
#include "selective_undo.h"

#define FOR(name) AT(name##_f64)
#define WIDE double
#define BITS int64_t
#define SERIES EXP_SERIES_F64
#define ROUNDER 0x1.8p52
#define BIAS 1023
#define FRACTION 52
#define LOWEST -746
#define HIGHEST 710
#define LOG2_HIGH 0x1.62e42feep-1
#define LOG2_LOW 0x1.a39ef35793c76p-33
#define SUFFIXED(name) name##_pd
#define MASK_512 _mm512_cmp_pd_mask
#include "selective_vectors.h"
#include "selective_loops.h"
#include "selective_undo.h"
