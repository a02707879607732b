// Columns that lie side by side in aligned rows, and are long: a block walks the tiles of a strip of columns, or of a part of one, while
// the next ones come to a ring in shared memory. A warp owns R rows of a tile, a lane W of its columns.
//
// A kind that is tried first says in `bad` which strips it cannot do. The kernel `columns` does those again.
#pragma once

#include "scan_strip_ring.cuh"
#include "scan_walk.cuh"

// A kind whose tiles hand on the states of threads.
template <typename K>
struct Near : K {
    using FarHead = typename K::Head;
    using Far = typename K::Tail;
    template <typename S, typename A>
    static __device__ S far(const S& s, A)
    {
        return s;
    }
    template <typename S, typename A>
    static __device__ S near(const S& s, A)
    {
        return s;
    }
};
template <typename K, bool = kTame<K>>
struct HandedOn {
    using Kind = K;
};
template <typename K>
struct HandedOn<K, true> {
    using Kind = Near<K>;
};

template <typename K, typename T>
struct Strip : StripRing<K, T> {
    using Ring = StripRing<K, T>;
    using Ring::X, Ring::W, Ring::R, Ring::WARPS, Ring::ROWS, Ring::ACROSS, Ring::SIDE, Ring::STAGE;
    using Ring::args, Ring::ring, Ring::stages, Ring::phase, Ring::items, Ring::count, Ring::ahead, Ring::steps;
    using typename Ring::Item;
    using E = typename HandedOn<K>::Kind;
    using A = typename K::Number;
    using Head = typename K::Head;
    using Tail = typename K::Tail;
    using Far = typename E::Far;
    static constexpr int N = sizeof(T) == 8 ? 2 : 4;
    using Cell = typename K::template Cell<R, N, false>;
    using Vector = Words<T, W>;
    template <typename S>
    struct alignas(W * sizeof(S)) Own {  // of the columns of a lane
        S at[W];
    };

    struct Shared {
        Room<Own<Head>, K::HEAD ? 2 * kStripThreads : 1> heads;  // totals of warps, of two tiles; [warp][lane]
        Room<Own<Tail>, kStripThreads> tails;
        Room<Own<Head>, K::HEAD ? 32 : 1> head;  // what enters the tile
        Room<Own<Tail>, 32> tail;
    };

    Shared& shared;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    i64 strip, part;
    int held, rest;  // columns of the strip, rows of the part
    T* dx;           // the first element of the thread in the last tile
    A base[W];
    Head head;       // what enters, of the column that the thread has charge of
    Far tail;
    bool bad;

    __device__ Strip(const ScanArgs& args, Shared& s, const uint4* ring) : Ring(args, ring), shared(s) {}

    // Whether column v of the lane exists; whether the thread has charge of a column.
    __device__ bool has(int v) const { return lane * W + v < held; }
    __device__ bool charged() const { return threadIdx.x < ACROSS; }
    __device__ Walk<E> walk() const { return Walk<E>(args, strip, part, ACROSS); }

    // The elements of the thread in a tile of so many rows.
    __device__ void read(const uint4* from, Vector (&word)[R], int rows, T pad) const
    {
        const T* q = reinterpret_cast<const T*>(from) + warp * R * ACROSS + lane * W;
        if (rows < ROWS || held < ACROSS) {
#pragma unroll 1
            for (int r = 0; r < R; ++r)
                for (int v = 0; v < W; ++v)
                    if (warp * R + r >= rows || !has(v)) const_cast<T*>(q)[r * ACROSS + v] = pad;
        }
#pragma unroll
        for (int r = 0; r < R; ++r) word[r].load(q + r * ACROSS);
    }

    // The join of the heads of all warps, of the column that the thread has charge of.
    __device__ Head all_heads(int parity)
    {
        Head sum = K::empty();
#pragma unroll 4
        for (int w = 0; w < WARPS; ++w) sum = K::join(sum, shared.heads[parity * kStripThreads + w * 32 + threadIdx.x / W].at[threadIdx.x % W]);
        return sum;
    }

    __device__ Far all_tails()
    {
        Tail sum = K::nothing();
#pragma unroll 4
        for (int w = WARPS - 1; w >= 0; --w) sum = K::join(shared.tails[w * 32 + threadIdx.x / W].at[threadIdx.x % W], sum);
        return E::far(sum, A(0));
    }

    __device__ void find_head(int step, const uint4* stage)
    {
        if (charged()) {
            if (step > 0) head = K::join(head, all_heads(step - 1 & 1));
            walk().head_before(step, threadIdx.x) = head;
        }
        Vector xs[R];
        read(stage, xs, rest - step * ROWS, static_cast<T>(K::pad(args)));
        Own<Head> own;
#pragma unroll
        for (int v = 0; v < W; ++v) {
            Cell cell;
            cell.begin(args);
            if constexpr (kBased<K>) cell.base = base[v];
            own.at[v] = cell.head([&](int r) { return xs[r].template value<A>(v); }, part == 0 && step == 0 && warp == 0);
            if constexpr (kTame<K>) bad = bad || !(cell.tame && K::tame(own.at[v]));
        }
        shared.heads[(step & 1) * kStripThreads + threadIdx.x] = own;
    }

    __device__ Head before(int t) const { return args.parts * count > 1 && charged() ? walk().head_before(t, threadIdx.x) : E::empty(); }

    __device__ void find_tail(int t, const uint4* stage, Head& next)
    {
        const int rows = rest - t * ROWS;
        const unsigned starts = part == 0 && t == 0 && warp == 0;
        if (charged()) {
            if constexpr (K::HEAD) shared.head[threadIdx.x / W].at[threadIdx.x % W] = K::join(head, next);
            shared.tail[threadIdx.x / W].at[threadIdx.x % W] = E::near(tail, A(0));
        }
        Vector xs[R], ys[R];
        if constexpr (X) read(stage, xs, rows, static_cast<T>(K::pad(args)));
        read(stage + (X ? ROWS * SIDE : 0), ys, rows, T());
        const auto xv = [&](int v) { return [&xs, v](int r) { return xs[r].template value<A>(v); }; };
        const auto yv = [&](int v) { return [&ys, v](int r) { return ys[r].template value<A>(v); }; };
        Cell cell[W];
        Own<Head> heads;
        Own<Tail> tails;
#pragma unroll
        for (int v = 0; v < W; ++v) {
            cell[v].begin(args);
            if constexpr (kBased<K>) cell[v].base = base[v];
            if constexpr (!K::ORDERED) tails.at[v] = cell[v].tail(xv(v), yv(v), starts);
            if constexpr (kTogether<K>)
                heads.at[v] = cell[v].product;
            else if constexpr (K::HEAD)
                heads.at[v] = cell[v].head(xv(v), starts);
        }
        if constexpr (K::HEAD) shared.heads[threadIdx.x] = heads;
        if constexpr (!K::ORDERED) shared.tails[threadIdx.x] = tails;
        __syncthreads();
        if constexpr (K::HEAD) {
            if (t > 0) next = before(t - 1);
            heads = shared.head[lane];
#pragma unroll 4
            for (int w = 0; w < warp; ++w) {
                const Own<Head> ahead = shared.heads[w * 32 + lane];
#pragma unroll
                for (int v = 0; v < W; ++v) heads.at[v] = K::join(heads.at[v], ahead.at[v]);
            }
#pragma unroll
            for (int v = 0; v < W; ++v) cell[v].enter(heads.at[v], xv(v), yv(v), starts);
        }
        if constexpr (K::ORDERED) {
#pragma unroll
            for (int v = 0; v < W; ++v) tails.at[v] = cell[v].tail(xv(v), yv(v), starts);
            shared.tails[threadIdx.x] = tails;
            __syncthreads();
        }
        if (charged()) tail = K::join(all_tails(), tail);
        if (phase == kTails) return;
        tails = shared.tail[lane];
#pragma unroll 4
        for (int w = WARPS - 1; w > warp; --w) {
            const Own<Tail> behind = shared.tails[w * 32 + lane];
#pragma unroll
            for (int v = 0; v < W; ++v) tails.at[v] = K::join(behind.at[v], tails.at[v]);
        }
        A out[R][W];
#pragma unroll
        for (int v = 0; v < W; ++v) {
            cell[v].finish(tails.at[v], xv(v), yv(v), starts, [&](int c, const A(&some)[N]) {
#pragma unroll
                for (int r = 0; r < N; ++r) out[c * N + r][v] = some[r];
            });
            if constexpr (kTame<K>) bad = bad || !cell[v].tame;
        }
        dx -= ROWS * args.dx.step;
        const int left = has(0) ? rows - warp * R : 0;
        T* q = dx;
        if (left >= R) {
#pragma unroll
            for (int r = 0; r < R; ++r, q += args.dx.step) store(q, out[r]);
        } else {
#pragma unroll
            for (int r = 0; r < R; ++r, q += args.dx.step)
                if (r < left) store(q, out[r]);
        }
    }

    static __device__ void store(T* q, const A (&out)[W])
    {
        if constexpr (W == 1)
            *q = static_cast<T>(out[0]);
        else
            store_wide<T, W>(q, narrowed<T, W>(out));
    }

    // Begins a part of a strip.
    __device__ void begin(i64 number)
    {
        const Item item = this->locate(number);
        strip = item.strip, part = item.part, held = item.held, rest = opaque(item.rest), bad = false;
        dx = reinterpret_cast<T*>(args.dx.data) + item.place.dx + item.column + lane * W +
             ((part * args.tiles + count) * ROWS + warp * R) * args.dx.step;
        if constexpr (kBased<K>) {
#pragma unroll
            for (int v = 0; v < W; ++v)
                base[v] = has(v) ? widen<A>(reinterpret_cast<const T*>(args.x.data)[item.place.x + item.column + lane * W + v]) : A(0);
        }
        if constexpr (K::HEAD) head = E::empty();
        tail = args.parts == 1 || phase != 0 ? E::far(K::nothing(), A()) : charged() ? walk().behind(threadIdx.x) : Far();
    }

    // Leaves what others need of it.
    __device__ void end()
    {
        if constexpr (K::HEAD) {
            if (phase == kHeads) {
                __syncthreads();
                if (charged()) walk().head(threadIdx.x) = K::join(head, all_heads(steps - 1 & 1));
            }
        }
        if (phase == kTails && charged()) walk().tail(threadIdx.x) = tail;
        if constexpr (kTame<K>) {
            bad = __syncthreads_or(bad);
            if (threadIdx.x == 0 && (phase != 0 || args.parts == 1 || bad)) args.bad[strip] = phase == 0 && bad;
        }
    }

    __device__ void run()
    {
        this->turn_to(blockIdx.x);
        int slot = 1, lead = 1 - stages;  // steps until the first tile is needed, counted up
        Head next;
#pragma unroll 1
        for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
            begin(item);
#pragma unroll 1
            for (int step = lead; step < steps; ++step, slot = slot + 1 == stages ? 0 : slot + 1) {
                if (step >= 0) {
                    this->wait();
                    if constexpr (kTame<K>)
                        bad = __syncthreads_or(bad);
                    else
                        __syncthreads();
                }
                this->ask(slot == 0 ? stages - 1 : slot - 1);
                if (step < 0 || (kTame<K> && bad)) continue;
                lead = 0;
                if constexpr (K::HEAD) {
                    if (step == ahead) {
                        head = args.parts > 1 && charged() ? walk().ahead(threadIdx.x) : E::empty();
                        next = before(count - 1);
                    }
                }
                const uint4* stage = ring + slot * STAGE;
                if (K::HEAD && step < ahead) {
                    if constexpr (K::HEAD) find_head(step, stage);
                } else {
                    find_tail(this->tile_of(step), stage, next);
                }
            }
            end();
        }
    }
};

template <typename K, typename T>
__device__ void strips(const ScanArgs& args)
{
    using First = TameKind<K, T>;
    extern __shared__ uint4 ring[];
    __shared__ typename Strip<First, T>::Shared shared;
    Strip<First, T>(args, shared, ring).run();
}
