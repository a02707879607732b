// Scans along a dim while another one is adjacent in memory: a thread owns W columns of R rows, `width` threads lie side by side, `height`
// of them one above the other share a strip. A strip of more than a warp has a block for itself; one of more than a tile goes through a
// chain.
#pragma once

#include "scan_inner.cuh"

constexpr int kColumnThreads = 512;

// Bytes of a row that a thread owns, and rows: so that a thread has few columns to find the states of.
template <typename K, typename T>
constexpr int kAcross = sizeof(T) == 8 || !(K::HEAD || __is_same(typename K::Value, i64)) ? 8 : 4;
template <typename K, typename T>
constexpr int kDown = sizeof(T) == 8 || kVectors<K, T> == 2 ? 8 : 16;

template <typename K, typename T>
struct Outer {
    static constexpr int N = sizeof(T) == 8 ? 2 : 4, W = kAcross<K, T> / sizeof(T), R = kDown<K, T>, ROOM = kColumnThreads * W;
    using A = typename K::Number;
    using Head = typename K::Head;
    using Tail = typename K::Tail;
    using Far = typename K::Far;
    static constexpr bool X = __is_same(typename K::Value, A), INDEX = __is_same(typename K::Value, i64);
    using Cell = typename K::template Cell<R, N, false>;
    using Vector = Words<T, W>;

    struct Shared {  // totals of warps, [warp][column]; then what enters the warp
        Room<Head, K::HEAD ? ROOM : 1> heads;
        Room<Tail, ROOM> tails;
        A room[kColumnThreads][K::ROOM ? 2 * N : 1];
        int spare;
    };

    const ScanArgs& args;
    Shared& shared;
    i64 strip, p;
    int width, height, lane, x, y;
    i64 outer, column, row0;
    int columns, count;

    __device__ Outer(const ScanArgs& a, Shared& s, i64 strip, i64 p) : args(a), shared(s), strip(strip), p(p)
    {
        width = static_cast<int>(args.width), height = static_cast<int>(args.height), lane = threadIdx.x % 32;
        x = threadIdx.x & (width - 1);
        const int above = threadIdx.x / width;
        y = above & (height - 1);
        if (alone()) this->strip += above / height;  // strips of a block
        const i64 across = (args.extent[0] + width * W - 1) / (width * W);
        outer = across == 1 ? this->strip : this->strip / across;
        column = (this->strip - outer * across) * width * W + x * W;
        row0 = ((args.tiles - 1 - p) * height + y) * R;
        const i64 wide = this->strip < args.strips ? args.extent[0] - column : 0, deep = args.n - row0;
        columns = static_cast<int>(max(min(wide, static_cast<i64>(W)), i64(0)));
        count = columns == 0 ? 0 : static_cast<int>(max(min(deep, static_cast<i64>(R)), i64(0)));
    }

    // Whether strips are parts of warps.
    __device__ bool alone() const { return width * height <= 32; }

    template <typename S>
    __device__ S* first(const Strided& operand, i64 outside) const
    {
        return reinterpret_cast<S*>(operand.data) + outside + column * operand.stride[0] + row0 * operand.step;
    }

    // Whether the columns of this thread are one access in every row.
    __device__ bool wide(const Strided& operand, const T* q) const
    {
        return columns == W && operand.stride[0] == 1 && aligned<W * sizeof(T)>(q) && operand.step % W == 0;
    }

    __device__ void load(const Strided& operand, i64 outside, Vector (&word)[R], T pad) const
    {
        const T* q = first<T>(operand, outside);
        const bool all = wide(operand, q);
        if (all && count == R) {
#pragma unroll
            for (int r = 0; r < R; ++r) word[r].load(q + r * operand.step);
            return;
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int v = 0; v < W; ++v) word[r].set(v, r < count && v < columns ? q[r * operand.step + v * operand.stride[0]] : pad);
        }
    }

    __device__ void store(const Vector (&word)[R], i64 outside) const
    {
        T* q = first<T>(args.dx, outside);
        const bool all = wide(args.dx, q);
#pragma unroll
        for (int r = 0; r < R; ++r) {
            if (r >= count) continue;
            if (all) {
                word[r].store(q + r * args.dx.step);
            } else {
#pragma unroll
                for (int v = 0; v < W; ++v)
                    if (v < columns) q[r * args.dx.step + v * args.dx.stride[0]] = word[r].get(v);
            }
        }
    }

    // ------------------------------------------------------------------------------------------------ what enters

    using HeadChain = Chain<Head, kRadix>;
    __device__ HeadChain heads() const { return {args, args.ready, args.states, strip, across()}; }
    __device__ Chain<Far, kRadix> tails() const
    {
        const i64 flags = K::HEAD ? args.strips * (args.tiles + HeadChain::groups_of(args)) : 0;
        const i64 states = K::HEAD ? (args.strips * HeadChain::entries(args) * across() * static_cast<i64>(sizeof(Head)) + 15) / 16 * 16 : 0;
        return {args, args.ready + flags, args.states + states, strip, across()};
    }

    __device__ int across() const { return width * W; }
    __device__ int slot(int warp, int c) const { return warp * across() + c; }

    // Thread c takes column c: the totals of the warps become what enters each of them.
    __device__ void pass_heads() const
    {
        const int c = threadIdx.x, warps = blockDim.x / 32;
        const auto join = [](const Head& first, const Head& second) { return K::join(first, second); };
        Head sum = K::empty();
        __syncthreads();
        if (args.tiles > 1) {
            Head own = K::empty();
            if (c < across())
#pragma unroll 4
                for (int w = 0; w < warps; ++w) own = K::join(own, shared.heads[slot(w, c)]);
            const bool publish = (args.flags & kPublished) == 0, last = (args.flags & kHeads) != 0;
            sum = column_carry(heads(), &shared.spare, args.tiles - 1 - p, own, publish, last, K::empty(), join);
        }
        if (c < across())
#pragma unroll 4
            for (int w = 0; w < warps; ++w) {
                const Head own = shared.heads[slot(w, c)];
                shared.heads[slot(w, c)] = sum;
                sum = K::join(sum, own);
            }
        __syncthreads();
    }

    __device__ void pass_tails() const
    {
        const int c = threadIdx.x, warps = blockDim.x / 32;
        const auto join = [](const Far& first, const Far& second) { return K::join(second, first); };
        Tail sum = K::nothing();
        __syncthreads();
        if (args.tiles > 1) {
            Tail own = K::nothing();
            if (c < across())
#pragma unroll 4
                for (int w = warps - 1; w >= 0; --w) own = K::join(shared.tails[slot(w, c)], own);
            sum = K::near(column_carry(tails(), &shared.spare, p, K::far(own), true, false, K::far(K::nothing()), join));
        }
        if (c < across())
#pragma unroll 4
            for (int w = warps - 1; w >= 0; --w) {
                const Tail own = shared.tails[slot(w, c)];
                shared.tails[slot(w, c)] = sum;
                sum = K::join(own, sum);
            }
        __syncthreads();
    }

    // ------------------------------------------------------------------------------------------------ a tile

    // The join of the threads of a column that are ahead in the warp, without this one; the total of the warp goes to shared memory.
    __device__ Head head_of_lanes(const Head& own, int v) const
    {
        const Head all = heads_up_to<K>(own, width, alone() ? y * width : lane);
        if (!alone() && lane >= 32 - width) shared.heads[slot(threadIdx.x / 32, x * W + v)] = all;
        const Head next = from_below(all, width);
        return width == 32 || (alone() ? y == 0 : lane < width) ? K::empty() : next;
    }

    __device__ Tail tail_of_lanes(const Tail& own, int v) const
    {
        const Tail all = tails_down_to<K>(own, width, alone() ? (height - 1 - y) * width : 31 - lane);
        if (!alone() && lane < width) shared.tails[slot(threadIdx.x / 32, x * W + v)] = all;
        const Tail next = from_above(all, width);
        return width == 32 || (alone() ? y == height - 1 : lane >= 32 - width) ? K::nothing() : next;
    }

    __device__ void run() const
    {
        const Places place(args, 1, columns > 0 ? outer : 0);
        Vector xs[R], ys[R];
        const bool heads_only = K::HEAD && args.flags & kHeads;
        if constexpr (X) load(args.x, place.x, xs, static_cast<T>(K::pad(args)));
        if (!heads_only) load(args.dy, place.dy, ys, T());
        const auto xv = [&](int v) { return [&xs, v](int r) { return xs[r].template value<A>(v); }; };
        const auto yv = [&](int v) { return [&ys, v](int r) { return ys[r].template value<A>(v); }; };
        const unsigned starts = row0 == 0;
        Cell cell[W];
        Head head[W];
        Tail tail[W];
#pragma unroll
        for (int v = 0; v < W; ++v) {
            cell[v].begin(args, reinterpret_cast<A*>(&shared.room[threadIdx.x]));
            if constexpr (INDEX) take(cell[v], v, place.x, starts);
            if constexpr (K::HEAD) head[v] = head_of_lanes(cell[v].head(xv(v), starts), v);
        }
        const auto find_tails = [&] {
#pragma unroll
            for (int v = 0; v < W; ++v) tail[v] = tail_of_lanes(cell[v].tail(xv(v), yv(v), starts), v);
        };
        if constexpr (!K::ORDERED) {
            if (!heads_only) find_tails();
        }
        if constexpr (K::HEAD) {
            if (!alone()) pass_heads();
            if (heads_only) return;
            renew(xs);
#pragma unroll
            for (int v = 0; v < W; ++v) {
                if (!alone()) head[v] = K::join(shared.heads[slot(threadIdx.x / 32, x * W + v)], head[v]);
                cell[v].enter(head[v], xv(v), yv(v), starts);
            }
        }
        if constexpr (K::ORDERED) find_tails();
        if (!alone()) pass_tails();
        if constexpr (X) renew(xs);
        renew(ys);
#pragma unroll
        for (int v = 0; v < W; ++v) {
            if (!alone()) tail[v] = K::join(tail[v], shared.tails[slot(threadIdx.x / 32, x * W + v)]);
            cell[v].finish(tail[v], xv(v), yv(v), starts, [&](int c, const A(&dx)[N]) {
#pragma unroll
                for (int r = 0; r < N; ++r) ys[c * N + r].replace(v, static_cast<T>(dx[r]));
            });
        }
        store(ys, place.dx);
    }

    __device__ void take(Cell& cell, int v, i64 outside, unsigned starts) const
    {
        const i64* q = first<i64>(args.x, outside) + v * args.x.stride[0];
        const bool here = v < columns && count > 0;
        const i64 before = here && row0 > 0 ? *(q - args.x.step) : 0;
        cell.take(args, [&](int r) { return q[r * args.x.step]; }, 0, here ? count : 0, starts, outer * args.extent[0] + column + v, row0, before);
    }
};

template <typename K, typename T>
__device__ void columns(const ScanArgs& args)
{
    using Scan = Outer<K, T>;
    __shared__ typename Scan::Shared shared;
    // `batch` strips go together, so that what is adjacent in memory is read at about the same time.
    i64 strip = blockIdx.x, p = 0;
    if (args.tiles > 1) {
        const unsigned batch = static_cast<unsigned>(args.batch), all = batch * static_cast<unsigned>(args.tiles);
        const unsigned k = blockIdx.x / all, rest = blockIdx.x - k * all;
        p = rest / batch;
        strip = static_cast<i64>(k) * batch + (rest - p * batch);
        if (strip >= args.strips) return;
    } else if (args.width * args.height <= 32) {
        strip = static_cast<i64>(blockIdx.x) * (blockDim.x / (args.width * args.height));
    }
    Scan(args, shared, strip, p).run();
}
