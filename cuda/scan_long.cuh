// Rows of aligned vectors that are longer than a block holds: a strip is a row. A thread owns U adjacent vectors of a tile.
#pragma once

#include "scan_inner.cuh"
#include "scan_ring.cuh"

constexpr int kLongThreads = 256, kLongWarps = kLongThreads / 32;

template <typename K, typename T>
struct Long : Ring<Long<K, T>, K> {
    using Base = Ring<Long, K>;
    using A = typename K::Number;
    using Head = typename K::Head;
    using Tail = typename K::Tail;
    using Far = typename K::Far;
    static constexpr bool X = __is_same(typename K::Value, A);
    static constexpr int V = 16 / sizeof(T), U = 4, I = U * V, TILE = kLongThreads * I;
    static constexpr int COLUMNS = 1, STAGE = kLongThreads * U * (X ? 2 : 1);
    using Cell = typename K::template Cell<I, V, false>;
    using Vector = Words<T, V>;
    using Memory = Line<T, U, true>;

    struct Shared {
        Room<Head, K::HEAD ? 2 * kLongWarps : 1> heads;  // totals of warps, of two tiles
        Room<Tail, kLongWarps> tails;
        Room<Head, 1> head;  // what enters the tile
        Room<Tail, 1> tail;
    };

    using Base::args, Base::phase, Base::strip, Base::part, Base::head, Base::tail, Base::bad;
    Shared& shared;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const char *x, *y;     // what is asked for: the first vector of the thread,
    int left;              // and the elements from there on
    const char* repeated;  // the number that is all of dy
    int rest;              // elements of the part
    char* dx;              // its first vector
    A base;

    __device__ Long(const ScanArgs& args, Shared& s, uint4* ring) : Base(args, ring), shared(s) {}

    // One warp has charge of the row.
    __device__ int column() const { return 0; }
    __device__ bool charged() const { return warp == 0; }
    __device__ Head ahead_of_part() const { return this->walk().ahead_by_warp(); }
    __device__ Far behind() const { return this->walk().behind_by_warp(); }

    // Where an item is, and how many elements there are from its first one on.
    struct Item {
        i64 strip, part, first;
        Places place;
        int rest;
    };
    __device__ Item locate(unsigned number) const
    {
        Item item;
        const unsigned parts = static_cast<unsigned>(args.parts), strip = parts == 1 ? number : number / parts;
        item.strip = strip, item.part = number - strip * parts, item.first = item.part * args.tiles * TILE;
        item.place = Places::at_stride(args, 0, strip);
        item.rest = static_cast<int>(min(args.n - item.first, static_cast<i64>(1 << 30)));
        return item;
    }

    // Vector m of an item, whose elements run against scan order where the step is negative.
    static __device__ char* vector_of(const Strided& operand, i64 from, i64 first, int m)
    {
        const i64 k = first + m * V;
        return operand.data + (operand.step < 0 ? from - k - (V - 1) : from + k) * static_cast<i64>(sizeof(T));
    }
    static __device__ i64 apart(const Strided& operand) { return operand.step < 0 ? -16 : 16; }

    __device__ void aim(unsigned number)
    {
        const Item item = locate(number);
        if constexpr (X) x = vector_of(args.x, item.place.x, item.first, threadIdx.x);
        y = vector_of(args.dy, item.place.dy, item.first, threadIdx.x);
        left = item.rest - static_cast<int>(threadIdx.x) * V;
    }

    // Vectors lie where Line has them: lanes meet different banks, both side by side and U apart.
    __device__ void fetch(int t, bool heads, unsigned to) const
    {
        const auto operand = [&](const char* from, const Strided& operand, unsigned to) {
            from += t * (kLongThreads * U) * apart(operand);
#pragma unroll
            for (int k = 0; k < U; ++k)
                if (k * kLongThreads * V < left - t * TILE) this->fetch_vector(to + k * kLongThreads * 16, from + k * kLongThreads * apart(operand));
        };
        to += (Memory::place(threadIdx.x) - static_cast<int>(threadIdx.x)) * 16;
        if constexpr (X) operand(x, args.x, to);
        if (!heads && args.dy.step != 0) operand(y, args.dy, to + (X ? kLongThreads * U * 16 : 0));
    }

    __device__ void enter(unsigned number)
    {
        const Item item = locate(number);
        strip = item.strip, part = item.part, rest = opaque(item.rest);
        dx = vector_of(args.dx, item.place.dx, item.first, 0);
        repeated = args.dy.data + item.place.dy * sizeof(T);
        if constexpr (kBased<K>) base = widen<A>(reinterpret_cast<const T*>(args.x.data)[item.place.x]);
    }

    __device__ unsigned starts(int t) const { return part == 0 && t == 0 && threadIdx.x == 0; }

    // The elements of the thread in a tile of so many.
    __device__ void read(uint4* from, const Strided& operand, Vector (&word)[U], int count, T pad) const
    {
        if (operand.step == 0) {
            const T all = *reinterpret_cast<const T*>(repeated);
#pragma unroll
            for (int u = 0; u < U; ++u)
#pragma unroll
                for (int v = 0; v < V; ++v) word[u].set(v, static_cast<int>(threadIdx.x) * I + u * V < count ? all : pad);
            return;
        }
        if (count < TILE) {
#pragma unroll 1
            for (int k = 0; k < I; ++k)
                if (static_cast<int>(threadIdx.x) * I + k >= count) Memory::slot(from, threadIdx.x * I + k) = pad;
        }
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].load(&Memory::slot(from, threadIdx.x * I + u * V));
        flip(word, operand);
    }

    __device__ void flip(Vector (&word)[U], const Strided& operand) const
    {
        if (operand.step > 0) return;
#pragma unroll
        for (int u = 0; u < U; ++u) word[u] = Memory::flipped(word[u]);
    }

    // Lanes take vectors that lie side by side.
    __device__ void store(uint4* room, Vector (&word)[U], int t, int count) const
    {
        flip(word, args.dx);
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].store(&Memory::slot(room, threadIdx.x * I + u * V));
        __syncwarp();
        const int first = warp * 32 * U + lane;
        char* to = dx + (t * (kLongThreads * U) + first) * apart(args.dx);
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].load(&Memory::slot(room, (first + u * 32) * V));
#pragma unroll
        for (int u = 0; u < U; ++u)
            if ((first + u * 32) * V < count) word[u].store(reinterpret_cast<T*>(to + u * 32 * apart(args.dx)));
    }

    // The join of `count` states of warps from `room` on, in every lane.
    template <typename S>
    __device__ S joined(S* room, int count, S nothing) const
    {
        S s = lane < count ? room[lane] : nothing;
#pragma unroll 1
        for (int d = 1; d < kLongWarps; d *= 2) {
            const S next = from_above(s, d);
            if (lane + d < 32) s = K::join(s, next);
        }
        return from_lane(s, 0);
    }
    __device__ Head all_heads(int parity) { return joined(&shared.heads[parity * kLongWarps], kLongWarps, K::empty()); }
    __device__ Far all_tails() { return K::far(joined(&shared.tails[0], kLongWarps, K::nothing())); }

    __device__ void find_head(int t, uint4* stage, int parity)
    {
        Vector xs[U];
        read(stage, args.x, xs, rest - t * TILE, static_cast<T>(K::pad(args)));
        Cell cell;
        cell.begin(args);
        if constexpr (kBased<K>) cell.base = base;
        const Head own = cell.head([&](int i) { return xs[i / V].template value<A>(i % V); }, starts(t)), all = heads_up_to<K>(own, 1, lane);
        if constexpr (kTame<K>) bad = bad || !(cell.tame && K::tame(all));
        if (lane == 31) shared.heads[parity * kLongWarps + warp] = all;
    }

    __device__ void find_tail(int t, uint4* stage, Head& next)
    {
        const int count = rest - t * TILE;
        uint4* room = stage + (X ? kLongThreads * U : 0);
        if (threadIdx.x == 0) {
            if constexpr (K::HEAD) shared.head[0] = K::join(head, next);
            shared.tail[0] = K::near(tail);
        }
        Vector xs[U], ys[U];
        if constexpr (X) read(stage, args.x, xs, count, static_cast<T>(K::pad(args)));
        read(room, args.dy, ys, count, T());
        const auto xv = [&](int i) { return xs[i / V].template value<A>(i % V); };
        const auto yv = [&](int i) { return ys[i / V].template value<A>(i % V); };
        Cell cell;
        cell.begin(args);
        if constexpr (kBased<K>) cell.base = base;
        Head in_warp;
        Tail own;
        const auto join_tails = [&] {
            const Tail all = tails_down_to<K>(own, 1, 31 - lane);
            if (lane == 0) shared.tails[warp] = all;
            own = from_above(all, 1);
            if (lane == 31) own = K::nothing();
        };
        if constexpr (!K::ORDERED) own = cell.tail(xv, yv, starts(t));
        if constexpr (K::HEAD) {
            if constexpr (kTogether<K>)
                in_warp = cell.product;
            else
                in_warp = cell.head(xv, starts(t));
            const Head all = heads_up_to<K>(in_warp, 1, lane);
            if (lane == 31) shared.heads[warp] = all;
            in_warp = from_below(all, 1);
            if (lane == 0) in_warp = K::empty();
        }
        if constexpr (!K::ORDERED) join_tails();
        __syncthreads();
        if constexpr (X) renew(xs);
        renew(ys);
        if constexpr (K::HEAD) {
            if (t > 0) next = this->before(t - 1);
            cell.enter(K::join(K::join(shared.head[0], joined(&shared.heads[0], warp, K::empty())), in_warp), xv, yv, starts(t));
        }
        if constexpr (K::ORDERED) {
            own = cell.tail(xv, yv, starts(t));
            join_tails();
            __syncthreads();
        }
        if (charged()) tail = K::join(all_tails(), tail);
        if (phase == kTails) return;
        own = K::join(own, K::join(joined(&shared.tails[0] + warp + 1, kLongWarps - 1 - warp, K::nothing()), shared.tail[0]));
        if constexpr (X) renew(xs);
        renew(ys);
        cell.finish(own, xv, yv, starts(t), [&](int u, const A(&out)[V]) { ys[u] = Memory::packed(out); });
        if constexpr (kTame<K>) bad = bad || !cell.tame;
        store(room, ys, t, count);
    }
};

template <typename K, typename T>
__device__ void long_rows(const ScanArgs& args)
{
    using First = TameKind<K, T>;
    extern __shared__ uint4 ring[];
    __shared__ typename Long<First, T>::Shared shared;
    Long<First, T>(args, shared, ring).run();
}
