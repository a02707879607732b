// scan/: the backward of cumulative operations. Includes run one way: state <- tile, pipeline <- row, column <- records <- export. A kind
// (kinds/) sees state and tile; no kind knows a kernel and no kernel a kind, and the .cu files put the two together.
//
// The kernels of a kind of scan, by name, and the registers that they may use: blocks that share a multiprocessor, SHORT_... of 16-bit rows.
#pragma once

#include "common/export.cuh"
#include "scan/column/cluster_io.cuh"
#include "scan/column/tiled.cuh"
#include "scan/records.cuh"
#include "scan/row/cluster_io.cuh"
#include "scan/row/packed_resident_tiled.cuh"
#include "scan/row/pipelined_io.cuh"

#define EXPORT_KIND(name, T, A, kind, Kind, ROW, SHORT_ROW, ROWS, SHORT_ROWS, COLUMNS) \
    EXPORT_THREADS(scan_backward_##kind##_rows_##name, kRowsThreads, sizeof(T) == 2 ? SHORT_ROWS : ROWS, ScanArgs, rows<Kind<A>, T>(args)) \
    EXPORT_THREADS(scan_backward_##kind##_row_##name, kRowThreads, sizeof(T) == 2 ? SHORT_ROW : ROW, ScanArgs, row<Kind<A>, T>(args)) \
    EXPORT_THREADS(scan_backward_##kind##_tiles_##name, kRowThreads, 2, ScanArgs, tiles<Kind<A>, T>(args)) \
    EXPORT_THREADS(scan_backward_##kind##_columns_##name, kColumnThreads, COLUMNS, ScanArgs, columns<Kind<A>, T>(args))

// Rows that blocks hold together, for kinds that read numbers.
#define EXPORT_PIECES(name, T, A, kind, Kind) \
    EXPORT_THREADS(scan_backward_##kind##_pieces_##name, kPieceThreads, 1, ScanArgs, pieces<Kind<A>, T>(args))

// With a ring in shared memory: long columns and long rows, for kinds that read numbers.
#define EXPORT_STRIPS(name, T, A, kind, Kind) \
    EXPORT_THREADS(scan_backward_##kind##_strips_##name, kStripThreads, 1, ScanArgs, strips<Kind<A>, T>(args))
#define EXPORT_LONG(name, T, A, kind, Kind, BLOCKS) \
    EXPORT_THREADS(scan_backward_##kind##_long_##name, kLongThreads, BLOCKS, ScanArgs, long_rows<Kind<A>, T>(args))

// Columns that they hold, for kinds that are tried first.
#define EXPORT_SLABS(name, T, A, kind, Kind) \
    EXPORT_THREADS(scan_backward_##kind##_slabs_##name, kSlabThreads, 1, ScanArgs, slabs<Kind<A>, T>(args))
