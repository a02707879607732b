// Loads and stores of row_pipelined, in aligned vectors: global memory to shared memory by
// cp.async, from there to the threads that own the elements, and back.
#pragma once

#include "scan/row/pipelined.cuh"

// Copies `count` elements to shared memory.
template <typename T>
__device__ void copy_elements(unsigned to, const char* from, int count)
{
#pragma unroll 1
    for (int v = 0; v < count; ++v)
        static_cast<T*>(__cvta_shared_to_generic(to))[v] = reinterpret_cast<const T*>(from)[v];
}

// Vectors are swizzled as in WarpTransposeIO: lanes hit different banks in striped and in blocked
// order.
template <typename K, typename T>
__device__ void PipelinedRow<K, T>::fetch(int t, bool prefix_only, unsigned to) const
{
    const i64 at = static_cast<i64>(t) * (back() ? -OPERAND * 16 : OPERAND * 16);
    const auto operand = [&](const char* from, unsigned to) {
        if (!whole(t, producer_end))
            fetch_some(t, to, from + at);
        else if (back())
            fetch_back(to, from + at);
        else
            fetch_whole(to, from + at);
    };
    if constexpr (READS_X) operand(x, to);
    if (!K::FINDS_RECORDS && !prefix_only && !repeats()) operand(y, to + (READS_X ? OPERAND * 16 : 0));
    if constexpr (K::HAS_TWO_RESULTS) {
        if (args.outputs[kSecond].data && this->phase() == kDownsweep) operand(z, to + 2 * OPERAND * 16);
    }
    if (K::READS_RECORDS && threadIdx.x < TILE_ELEMENTS / 128)
        cp_async_16(
            to + (OPERAND + static_cast<int>(threadIdx.x) - Memory::swizzle(own())) * 16,
            records + t * (TILE_ELEMENTS / 8));
}

template <typename K, typename T>
template <int M>
__device__ void PipelinedRow<K, T>::fetch_whole(unsigned to, const char* from) const
{
    if constexpr (M < U) {
        cp_async_16<M * kRowPipelinedThreads * 16>(to, from);
        fetch_whole<M + 1>(to, from);
    }
}

template <typename K, typename T>
__device__ void PipelinedRow<K, T>::fetch_back(unsigned to, const char* from) const
{
    constexpr int NEXT = kRowPipelinedThreads * 16;
#pragma unroll 1
    for (int k = 0; k < U; ++k) cp_async_16(to + (U - 1 - k) * NEXT, from + k * NEXT);
}

// For a tile that holds elements of other rows, or touches the end of the allocation.
template <typename K, typename T>
__device__ void PipelinedRow<K, T>::fetch_some(int t, unsigned to, const char* from) const
{
    constexpr int NEXT = kRowPipelinedThreads * 16;
    const int left = producer_end - t * TILE, misalignment = t == 0 ? producer_end - static_cast<int>(args.n) : 0;
    // Nothing may be read beyond the last row.
    const bool last_row = args.flags & kMisaligned && this->row_of(this->producer_item) + 1 == args.segments;
    const int low = misalignment - (last_row && back() ? 0 : V - 1), high = left - (last_row && !back() ? V - 1 : 0);
#pragma unroll
    for (int k = 0; k < U; ++k) {
        const int m = back() ? U - 1 - k : k, first = (m * kRowPipelinedThreads + own()) * V;
        if (first >= low && first < high) cp_async_16(to + m * NEXT, from + k * NEXT);
    }
    // The partial vector.
    const int last = (back() ? misalignment : left) & -V, there = back() ? last + V - misalignment : left - last;
    if (const int m = last / (kRowPipelinedThreads * V);
        last_row && there < V && last >= 0 && last < TILE && last / V % kRowPipelinedThreads == own())
        copy_elements<T>(to + m * NEXT, from + (back() ? U - 1 - m : m) * NEXT, there);
}

// Replaces elements of the thread that do not belong to the row by `pad`.
template <typename K, typename T>
__device__ void PipelinedRow<K, T>::pad_outside_row(uint4* tile, int t, T pad) const
{
    const int count = row_end - t * TILE, misalignment = misalignment_at(t), own = static_cast<int>(threadIdx.x) * I;
    if (own >= misalignment && own + I <= count) return;
    Vector none;
#pragma unroll
    for (int v = 0; v < V; ++v) none.set(v, pad);
#pragma unroll 1
    for (int i = own; i < own + I; i += V) {
        if (i + V <= misalignment || i >= count) {
            none.store(&Memory::slot(tile, i));
            continue;
        }
#pragma unroll 1
        for (int v = 0; v < V; ++v)
            if (i + v < misalignment || i + v >= count) Memory::slot(tile, back() ? i + V - 1 - v : i + v) = pad;
    }
}

// The elements of the thread in a tile.
template <typename K, typename T>
__device__ void PipelinedRow<K, T>::read(uint4* tile, Vector (&word)[U], int t, T pad) const
{
    if (!whole(t, row_end)) pad_outside_row(tile, t, pad);
#pragma unroll
    for (int u = 0; u < U; ++u) word[u].load(Memory::blocked(tile, u, threadIdx.x));
    flip(word);
}

template <typename K, typename T>
__device__ void PipelinedRow<K, T>::read_dy(uint4* tile, Vector (&word)[U], int t) const
{
    if (repeats()) {
#pragma unroll
        for (int v = 0; v < V; ++v) word[0].set(v, *reinterpret_cast<const T*>(first_dy));
#pragma unroll 1
        for (int u = 0; u < U; ++u) word[0].store(Memory::blocked(tile, u, threadIdx.x));
    }
    read(tile, word, t, K::template pad_y<T>(args));
}

// Transposes to striped order and stores; elements of other rows are left alone.
template <typename K, typename T>
__device__ void PipelinedRow<K, T>::store(uint4* smem, Vector (&word)[U], int t, char* first_vector) const
{
    flip(word);
#pragma unroll
    for (int u = 0; u < U; ++u) word[u].store(Memory::blocked(smem, u, threadIdx.x));
    __syncwarp();
    const int first = warp * 32 * U + (back() ? 32 * U - 1 - lane : lane), slot = Memory::swizzle(first);
    const int count = row_end - t * TILE, misalignment = misalignment_at(t);
    T* to = reinterpret_cast<T*>(first_vector + static_cast<i64>(t) * (back() ? -OPERAND * 16 : OPERAND * 16));
    const auto own = [&](int u) { return reinterpret_cast<const T*>(smem + (slot ^ Memory::swizzle(u * 32))); };
    if (warp * 32 * I >= misalignment && (warp + 1) * 32 * I <= count) {
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].load(own(u));
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].store(to + u * 32 * V);
        return;
    }
#pragma unroll 1
    for (int u = 0; u < U; ++u, to += 32 * V) {
        const int i = (first ^ u * 32) * V, low = max(misalignment - i, 0), high = min(count - i, V);
        if (low == 0 && high == V) {
            word[0].load(own(u));
            word[0].store(to);
            continue;
        }
#pragma unroll 1
        for (int v = low; v < high; ++v) to[back() ? V - 1 - v : v] = own(u)[back() ? V - 1 - v : v];
    }
}
