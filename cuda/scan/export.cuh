// scan/: the backward of cumulative operations. Includes run one way: state <- tile, pipeline <-
// row, column <- records <- export. A kind (kinds/) includes state and tile alone. Kernels use a
// kind only through its contract (state/prefix_suffix.cuh), except for records.cuh, which knows
// cummax and cummin, and for the code for indices. The .cu files combine kinds and kernels.
//
// The first file to read in a folder, which says what the folder holds:
//
//     state/     prefix_suffix.cuh          the contract of a kind; terms: operands.cuh
//     kinds/     cumsum.cuh                 the mathematics of each kind
//     tile/      row_tile.cuh               a tile in registers
//     pipeline/  async_pipeline.cuh         tiles prefetched by cp.async
//     row/       tiled.cuh                  kernels along rows
//     column/    tiled.cuh                  kernels along columns
//
// This file: macros that export the kernels of a kind, whose symbols begin with `kind`. Launch
// bounds are tuned numbers of the kind.
#pragma once

#include "common/export.cuh"
#include "scan/column/cluster_io.cuh"
#include "scan/column/tiled.cuh"
#include "scan/records.cuh"
#include "scan/row/cluster_io.cuh"
#include "scan/row/packed.cuh"
#include "scan/row/pipelined_io.cuh"
#include "scan/row/resident.cuh"
#include "scan/row/tiled.cuh"

// Whether the states of a kind of packed sequences have the sizes by which Go lays out the
// workspace. A suffix is stored as a Carry.
template <typename K, typename A>
constexpr bool has_listed_states()
{
    constexpr int index = sizeof(A) / 8, prefix = K::NEEDS_PREFIX ? sizeof(typename K::Prefix) : 0;
    return prefix == K::Tuning::STATE_BYTES[index][0] &&
           sizeof(typename K::Carry) == K::Tuning::STATE_BYTES[index][1];
}

#define EXPORT_KIND(name, T, A, kind, Kind) \
    EXPORT_THREADS(kind##_row_packed_##name, kRowPackedThreads, \
        Kind<A>::Tuning::ROW_PACKED_CTAS_PER_SM[sizeof(T) / 4], Kind<A>::Args, row_packed<Kind<A>, T>(args)) \
    EXPORT_THREADS(kind##_row_resident_##name, kRowResidentThreads, \
        Kind<A>::Tuning::ROW_RESIDENT_CTAS_PER_SM[sizeof(T) / 4], Kind<A>::Args, row_resident<Kind<A>, T>(args)) \
    EXPORT_THREADS(kind##_row_tiled_##name, kRowResidentThreads, \
        kTiledCTAsPerSM, Kind<A>::Args, row_tiled<Kind<A>, T>(args)) \
    EXPORT_THREADS(kind##_column_tiled_##name, kColumnThreads, \
        kTiledCTAsPerSM, Kind<A>::Args, column_tiled<Kind<A>, T>(args))

// row_cluster, for kinds other than Indices.
#define EXPORT_ROW_CLUSTER(name, T, A, kind, Kind) \
    EXPORT_THREADS(kind##_row_cluster_##name, kRowClusterThreads, \
        1, Kind<A>::Args, row_cluster<Kind<A>, T>(args))

// The pipelined kernels column_pipelined and row_pipelined, for kinds other than Indices.
#define EXPORT_COLUMN_PIPELINED(name, T, A, kind, Kind) \
    EXPORT_THREADS(kind##_column_pipelined_##name, kColumnPipelinedThreads, \
        1, Kind<A>::Args, column_pipelined<Kind<A>, T>(args))
#define EXPORT_ROW_PIPELINED(name, T, A, kind, Kind) \
    EXPORT_THREADS(kind##_row_pipelined_##name, kRowPipelinedThreads, \
        Kind<A>::Tuning::ROW_PIPELINED_CTAS_PER_SM[sizeof(T) / 4], Kind<A>::Args, row_pipelined<Kind<A>, T>(args))

// column_cluster, for kinds with a fast path.
#define EXPORT_COLUMN_CLUSTER(name, T, A, kind, Kind) \
    EXPORT_THREADS(kind##_column_cluster_##name, kColumnClusterThreads, \
        1, Kind<A>::Args, column_cluster<Kind<A>, T>(args))

// Linear recurrences of packed sequences.
#define EXPORT_PACKED_LINEAR(name, T, A, kind, Kind) \
    EXPORT_THREADS(kind##_packed_row_tiled_##name, kRowResidentThreads, \
        kTiledCTAsPerSM, LinearArgs, row_tiled<Kind<A>, T>(args)) \
    EXPORT_THREADS(kind##_packed_row_resident_##name, kRowResidentThreads, \
        1, LinearArgs, row_resident<Kind<A>, T>(args)) \
    EXPORT_THREADS(kind##_packed_column_tiled_##name, kColumnThreads, \
        kTiledCTAsPerSM, LinearArgs, column_tiled<Kind<A>, T>(args))
