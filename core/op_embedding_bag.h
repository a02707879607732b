#ifndef STERNWAY_OP_EMBEDDING_BAG_H
#define STERNWAY_OP_EMBEDDING_BAG_H
#include <stdint.h>

/* Some adjacent rows of dweight: row r is the sum of scales[e] dy[bags[e]] over the entries e from begin[r] to begin[r + 1], made in
   float64, and divided by their number where by_frequency is set. dy has columns without gaps, in float32 or float64. out has the
   storage type that `narrow` says. Addresses are integers: Go keeps the memory. */
typedef struct {
  uintptr_t dy, bags, scales, begin, out, room; /* scales may be 0; room: a row of float64 */
  long dy_bag, out_row, out_column, rows, columns, by_frequency, narrow;
  uintptr_t winners; /* not 0: an entry counts in column winners[e] alone */
} sw_bag_rows;

enum { BAG_F32, BAG_F64, BAG_F16, BAG_BF16 }; /* the rows of core/dtype.go */

void sw_bag_rows_f32(const sw_bag_rows *);
void sw_bag_rows_f64(const sw_bag_rows *);

/* out[e] = dot(dy of bags[e], row rows[e] of weight), both without gaps; 0 where rows[e] is no row, all bits set. weight is as wide as dy,
   or of 16 bits, which `narrow` says; room is for such a row in float32, or 0. */
typedef struct {
  uintptr_t dy, weight, bags, rows, out, room;
  long dy_bag, weight_row, columns, n, narrow;
} sw_bag_dots;

void sw_bag_dots_f32(const sw_bag_dots *);
void sw_bag_dots_f64(const sw_bag_dots *);
#endif
