/* Groups of lanes and tiles of positions, for the loops over a scan_call or scan_forward_call named
   `call`. */
#ifndef STERNWAY_SCAN_GROUP_H
#define STERNWAY_SCAN_GROUP_H
#include "scan.h"
#include "../../../cpu/vector.h"

#define POSITIONS(k) (call->n - (k) < positions ? call->n - (k) : positions)

/* The lanes of a call that advance together. */
typedef struct {
  long lane, lanes, width, positions;
} group;

#define WINDOW(at, count) &(scan_window){g->lane, g->lanes, g->width, at, count, (at) + (count) < call->n ? (count) : 0}
#define WINDOW_BACK(at, count) &(scan_window){g->lane, g->lanes, g->width, at, count, (at) > 0 ? -positions : 0}
#define SIZES long width = g->width, positions = g->positions
#define EACH_BLOCK for (long s = 0; s < width; s += SCAN_LANES)
#define EACH_TILE_BACK for (long k = (call->n - 1) / positions * positions, n; k >= 0 && (n = POSITIONS(k)); \
                            k -= positions)

/* The number of lanes of a group: more if rows are short, so that a tile is full. */
INLINE long width_of(long lanes, long n) {
  long width = SCAN_LANES;
  while (width < lanes && width < SCAN_WIDEST && 2 * width * n <= SCAN_TILE) width *= 2;
  return width;
}

INLINE group group_of(long lanes, long n, long lane) {
  long width = width_of(lanes, n), left = lanes - lane;
  return (group){lane, left < width ? left : width, width, SCAN_TILE / width};
}

#define EACH_GROUP for (group at = group_of(call->lanes, call->n, 0), *g = &at; at.lane < call->lanes; \
                        at = group_of(call->lanes, call->n, at.lane + at.width))
#endif
