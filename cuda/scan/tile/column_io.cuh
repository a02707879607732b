// ColumnIO: which columns and rows of a panel a thread owns (W columns, R rows of each tile), and
// their loads and stores.
#pragma once

#include "scan/state/prefix_suffix.cuh"

template <typename T, int W, int R>
struct ColumnIO {
    using Vector = Words<T, W>;

    const ScanArgs& args;
    int x, y;             // position of the thread in its panel
    int columns_present;  // of the panel
    i64 segment;
    Offsets offsets;  // of the first element of the thread in tile 0

    // `item` is a split of a panel, or a CTA with several panels.
    __device__ ColumnIO(const ScanArgs& args, unsigned item) : args(args)
    {
        const int log2_across = log2_of(threads_across()), log2_down = log2_of(threads_down()),
                  thread_row = threadIdx.x >> log2_across;
        x = threadIdx.x & (threads_across() - 1);
        y = thread_row & (threads_down() - 1);
        if (panel_in_warp())  // several panels in a CTA
            segment = (static_cast<i64>(item) * blockDim.x >> log2_across + log2_down) + (thread_row >> log2_down);
        else
            segment = args.splits == 1 ? item : item / static_cast<unsigned>(args.splits);
        const i64 panels_across = (args.extent[0] + columns() - 1) >> (log2_across + log2_of(W)),
                  outer = panels_across == 1 ? segment : segment / panels_across;
        const i64 column = (segment - outer * panels_across) * columns();
        columns_present =
            segment < args.segments ? static_cast<int>(min(args.extent[0] - column, static_cast<i64>(columns()))) : 0;
        offsets = Offsets::of(args, 1, columns_present > 0 ? outer : 0);
        offsets.for_each(args, [&](const Strided& operand, i64& offset) {
            offset = offset + (column + x * W) * operand.stride[0] + y * R * operand.step;
        });
    }

    // The logarithm of a power of two.
    static __device__ int log2_of(int n) { return 31 - __clz(n); }
    __device__ int threads_across() const { return static_cast<int>(args.threads_across); }
    __device__ int threads_down() const { return static_cast<int>(args.threads_down); }
    __device__ int columns() const { return threads_across() * W; }

    // Whether a warp holds whole panels, one or several, so that a panel needs no shared memory.
    __device__ bool panel_in_warp() const { return threads_across() * threads_down() <= 32; }

    // Whether column v of the thread exists.
    __device__ bool has(int v) const { return x * W + v < columns_present; }

    // The number of rows of a tile that the thread has.
    __device__ int count(i64 tile) const
    {
        i64 rest = args.n - y * R;
        if (tile > 0) rest -= tile * (threads_down() * R);
        return !has(0) ? 0 : static_cast<int>(max(min(rest, static_cast<i64>(R)), i64(0)));
    }

    template <typename S>
    __device__ S* first(const Strided& operand, i64 from, i64 tile) const
    {
        if (tile > 0) from += tile * (threads_down() * R) * operand.step;
        return reinterpret_cast<S*>(operand.data) + from;
    }

    // Whether the columns of this thread are one aligned access in every row.
    __device__ bool vectorizable(const Strided& operand, const T* q) const
    {
        return has(W - 1) && operand.stride[0] == 1 && aligned<W * sizeof(T)>(q) && operand.step % W == 0;
    }

    // Loads the first n rows; `pad` replaces the others.
    __device__ void load(const Strided& operand, i64 from, i64 tile, int n, Vector (&word)[R], T pad) const
    {
        const T* q = first<T>(operand, from, tile);
        const bool all = vectorizable(operand, q);
        if (all && n == R) {
#pragma unroll
            for (int r = 0; r < R; ++r, q += operand.step) word[r].load(q);
            return;
        }
#pragma unroll
        for (int r = 0; r < R; ++r, q += operand.step) {
#pragma unroll
            for (int v = 0; v < W; ++v) word[r].set(v, r < n && has(v) ? q[v * operand.stride[0]] : pad);
        }
    }

    // Loads the rows before rows `skipped` to n - 1, each in the place of the next row.
    __device__ void load_preceding(
        const Strided& operand, i64 from, i64 tile, int skipped, int n, Vector (&word)[R]) const
    {
        const T* q = first<T>(operand, from, tile) - operand.step;
        const bool all = vectorizable(operand, q);
#pragma unroll
        for (int r = 0; r < R; ++r, q += operand.step) {
            if (all && r >= skipped && r < n) {
                word[r].load(q);
                continue;
            }
#pragma unroll
            for (int v = 0; v < W; ++v)
                word[r].set(v, r >= skipped && r < n && has(v) ? q[v * operand.stride[0]] : T());
        }
    }

    static __device__ void clear(Vector (&word)[R])
    {
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
            for (int v = 0; v < W; ++v) word[r].set(v, T());
    }

    __device__ void store(const Vector (&word)[R], i64 tile, int n, int output = kResult) const
    {
        const Strided& result = args.outputs[output];
        T* q = first<T>(result, offsets.outputs[output], tile);
        const bool all = vectorizable(result, q);
        if (all && n == R) {
#pragma unroll
            for (int r = 0; r < R; ++r, q += result.step) word[r].store(q);
            return;
        }
#pragma unroll
        for (int r = 0; r < R; ++r, q += result.step) {
            if (r >= n) continue;
            if (all) {
                word[r].store(q);
            } else {
#pragma unroll
                for (int v = 0; v < W; ++v)
                    if (has(v)) q[v * result.stride[0]] = word[r].get(v);
            }
        }
    }
};
