// Loads and stores of column_cluster: global memory to shared memory by cp.async, from there to the
// threads that own the elements, and back.
#pragma once

#include "scan/column/cluster.cuh"

// Prefetches a panel. Adjacent lanes copy the vectors of a row.
template <typename K, typename T>
__device__ void ClusterPanel<K, T>::prefetch_tile(unsigned panel) const
{
    if (panel >= args.segments) return;
    const Item item = locate(panel);
    const int row = lane / VECTORS_PER_ROW, byte_in_row = lane % VECTORS_PER_ROW * 16, size = sizeof(T);
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(smem)) + byte_in_row;
    const auto at = [&](const Strided& from, i64 begin, int row) {
        return from.data + (begin + row * from.step) * size + byte_in_row;
    };
    const Strided &saved = args.inputs[kSaved], &scanned = args.inputs[kScanned];
    const char *x = at(saved, item.offsets.inputs[kSaved], first + row),
               *y = at(scanned, item.offsets.inputs[kScanned], first + row);
    if (whole(item)) {
        const unsigned even = to + row * VECTORS_PER_ROW * 16, odd = to + (row ^ GROUPS - 1) * VECTORS_PER_ROW * 16;
        prefetch_whole<0>(even, odd, x, ROWS_PER_COPY * saved.step * size);
        prefetch_whole<0>(even + OPERAND * 16, odd + OPERAND * 16, y, ROWS_PER_COPY * scanned.step * size);
    } else if (byte_in_row < item.columns_present * size) {
#pragma unroll 1
        for (int r = row; r < rows_present;
             r += ROWS_PER_COPY, x += ROWS_PER_COPY * saved.step * size, y += ROWS_PER_COPY * scanned.step * size) {
            fetch(to + slot_of_row(r) * VECTORS_PER_ROW * 16, x);
            fetch(to + (OPERAND + slot_of_row(r) * VECTORS_PER_ROW) * 16, y);
        }
    }
    if constexpr (K::HAS_BASE) {
        if (byte_in_row < item.columns_present * size)
            for (int r = row; r < kColumnBaseRows && r < args.n; r += ROWS_PER_COPY)
                fetch(to + (2 * OPERAND + r * VECTORS_PER_ROW) * 16, at(saved, item.offsets.inputs[kSaved], r));
    }
}

// For a warp all of whose rows and columns exist.
template <typename K, typename T>
template <int M>
__device__ void ClusterPanel<K, T>::prefetch_whole(unsigned even, unsigned odd, const char* from, i64 stride)
{
    if constexpr (M < ROWS) {
        fetch<M * VECTORS_PER_ROW * 16>(M / R % 2 ? odd : even, from);
        prefetch_whole<M + ROWS_PER_COPY>(even, odd, from + stride, stride);
    }
}

template <typename K, typename T>
__device__ void ClusterPanel<K, T>::read(Word (&word)[R], const uint4* from) const
{
    const T* even = reinterpret_cast<const T*>(from + (group * R + group) * VECTORS_PER_ROW) + lane_in_group * PER;
    const T* odd = reinterpret_cast<const T*>(from + (group * R - group) * VECTORS_PER_ROW) + lane_in_group * PER;
#pragma unroll
    for (int r = 0; r < R; ++r) word[r].load((r % 2 == 0 ? even : odd) + r * COLUMNS);
}

// Keeps x in shared memory until `finish` recomputes exponentials from it; no registers are free.
template <typename K, typename T>
__device__ void ClusterPanel<K, T>::stash_x(const Word (&word)[R]) const
{
#pragma unroll
    for (int r = 0; r < RECOMPUTED_ROWS; ++r) word[r].store(stashed_x(r));
}

template <typename K, typename T>
__device__ void ClusterPanel<K, T>::reload_x(Word (&word)[R]) const
{
    if constexpr (RECOMPUTED_ROWS == 0) return rematerialize(word);
#pragma unroll
    for (int r = 0; r < RECOMPUTED_ROWS; ++r) word[r].load(stashed_x(r));
}

template <typename K, typename T>
__device__ void ClusterPanel<K, T>::write(const Word (&word)[R], const Item& item) const
{
    const int column = lane_in_group * PER, row = group * R,
              left = column < item.columns_present ? rows_present - row : 0;
    const Strided& result = args.outputs[kResult];
    T* dx = reinterpret_cast<T*>(result.data) + item.offsets.outputs[kResult] + column + (first + row) * result.step;
    if (whole(item)) {
#pragma unroll
        for (int r = 0; r < R; ++r, dx += result.step) word[r].store(dx);
    } else {
#pragma unroll
        for (int r = 0; r < R; ++r, dx += result.step)
            if (r < left) word[r].store(dx);
    }
}
