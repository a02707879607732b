// Rows that are longer than a block holds, in aligned vectors of which the first and the last may hold elements of other rows: a strip is
// a row. A thread owns U adjacent vectors of a tile. Where rows do not begin with a sector, tiles do with a cache line, if it is one in all
// operands.
#pragma once

#include "common/async_copy.cuh"
#include "scan/pipeline/cooperative_row.cuh"
#include "scan/tile/row_tile.cuh"

constexpr int kLongThreads = 256, kLongWarps = kLongThreads / 32;

template <typename K, typename T>
struct Long : Team<Long<K, T>, K> {
    using Base = Team<Long, K>;
    using A = typename K::Number;
    using Head = typename K::Head;
    using Tail = typename K::Tail;
    using Far = typename K::Far;
    static constexpr bool X = __is_same(typename K::Value, A), BOTH = X && !kFinds<K>;  // x is there; dy too
    static constexpr int V = 16 / sizeof(T), SECTOR = 32 / sizeof(T), U = X || kRecorded<K> ? 4 : 8, I = U * V, TILE = kLongThreads * I, BITS = TILE;
    static constexpr bool TEAM = !BOTH || sizeof(T) == 4 || (sizeof(T) == 2 && !kHolds<K>);  // the others have no registers for it
    static constexpr int COLUMNS = 1, WARPS = kLongWarps, OPERAND = kLongThreads * U;
    static constexpr int STAGE = OPERAND * (BOTH ? 2 : 1) + (kRecorded<K> ? BITS / 128 : 0);
    using Cell = typename K::template Cell<I, V, false>;
    using Vector = Words<T, V>;
    using Memory = Line<T, U, true>;

    struct Kept {  // what enters the elements of a thread, and what those behind them in the tile make of what enters that
        Head head;
        Tail tail;
    };

    struct Shared {
        Room<Head, K::HEAD ? 2 * kLongWarps : 1> heads;  // totals of warps, of two tiles
        Room<Tail, kLongWarps> tails;
        alignas(16) char told[kLongWarps * (sizeof(Head) > sizeof(Far) ? sizeof(Head) : sizeof(Far))];  // what warps collected
        Room<Kept, kLongThreads> kept;
        Room<Head, 1> head;  // what enters the tile
        Room<Tail, 1> tail;
    };

    using Base::args, Base::strip, Base::head, Base::next, Base::tail, Base::faults, Base::hold, Base::team, Base::tiles, Base::joined;
    Shared& shared;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const char *x, *y;     // what is asked for: the first vector of the thread in the first tile,
    const char* records;   // of all of them
    char* found;           // of the thread in the first tile
    const char* repeated;  // the number that is all of dy
    int due, rest;         // elements of that row, with those ahead of it; and of the row that tiles are done of
    char* dx;              // the first vector of the lane in its first tile
    A base;

    __device__ Long(const ScanArgs& args, Shared& s, uint4* ring) : Base(args, ring), shared(s)
    {
        this->vector = opaque(static_cast<unsigned>(__cvta_generic_to_shared(ring + Memory::place(own()))));
    }

    // One warp has charge of the row.
    __device__ int column() const { return 0; }
    __device__ bool charged() const { return warp == 0; }
    __device__ void let_in(const Far& all) { shared.tail[0] = K::near(all); }
    // Whether all operands run against scan order; whether one number is all of dy.
    __device__ bool back() const { return static_cast<int>(args.dx.step) < 0; }
    __device__ bool repeats() const { return static_cast<int>(args.dy.step) == 0; }
    // Whether a tile is of the row alone, which has so many elements with those ahead of it.
    __device__ bool whole(int t, int all) const { return (t + 1) * TILE <= all && (t > 0 || all == static_cast<int>(args.n)); }
    // Vector m of a row.
    __device__ char* vector_of(const Strided& operand, i64 from, int m) const
    {
        return operand.data + (back() ? from - m * V - (V - 1) : from + m * V) * static_cast<i64>(sizeof(T));
    }
    // Elements of its first vector, or line, that are ahead of a row, which begins at an element of dx.
    __device__ int lead(i64 from) const { return args.flags & kLeads ? lead_of<T>(args, from, args.flags & kLines ? 128 : 16) : 0; }
    // A tile begins at its first byte in memory. Vector v from there on is the last but v where memory runs back.
    __device__ char* tiles_of(const Strided& operand, i64 from, int lead) const
    {
        return vector_of(operand, back() ? from + lead : from - lead, back() ? OPERAND - 1 : 0);
    }
    // The vector of a tile that the thread asks for, of every kLongThreads.
    __device__ int own() const { return back() ? kLongThreads - 1 - static_cast<int>(threadIdx.x) : static_cast<int>(threadIdx.x); }
    // Elements of a tile that are ahead of the row.
    __device__ int ahead_of(int t) const { return t == 0 ? rest - static_cast<int>(args.n) : 0; }

    __device__ void aim(unsigned item)
    {
        const Places place = Places::at_stride(args, 0, this->row_of(item));
        const int ahead = lead(place.dx);
        due = static_cast<int>(args.n) + ahead;
        if constexpr (X) x = tiles_of(args.x, place.x, ahead) + threadIdx.x * 16;
        y = tiles_of(args.dy, place.dy, ahead) + threadIdx.x * 16;
        if constexpr (kRecorded<K>) records = this->records_of(static_cast<i64>(this->row_of(item)) * tiles()) + threadIdx.x * 16;
    }

    __device__ void fetch(int t, bool heads, unsigned to) const;
    template <int M = 0>
    __device__ void fetch_whole(unsigned to, const char* from) const;
    __device__ void fetch_back(unsigned to, const char* from) const;
    __device__ void fetch_some(int t, unsigned to, const char* from) const;
    __device__ void cut(uint4* tile, int t, T pad) const;
    __device__ void read(uint4* tile, Vector (&word)[U], int t, T pad) const;
    __device__ void read_dy(uint4* tile, Vector (&word)[U], int t) const;
    __device__ void store(uint4* room, Vector (&word)[U], int t) const;

    __device__ void enter(unsigned item)
    {
        strip = this->row_of(item);
        const Places place = Places::at_stride(args, 0, strip);
        const int ahead = lead(place.dx);
        rest = opaque(static_cast<int>(args.n) + ahead);
        dx = opaque(tiles_of(args.dx, place.dx, ahead) + ((back() ? kLongWarps - 1 - warp : warp) * 32 * U + lane) * 16);
        repeated = args.dy.data + place.dy * sizeof(T);
        if constexpr (kFinds<K>) {
            if (threadIdx.x == 0) shared.head[0] = K::empty();
            found = opaque(this->records_of(static_cast<i64>(strip) * tiles()) + threadIdx.x * sizeof(Bits));
        }
        if constexpr (kBased<K>) base = widen<A>(reinterpret_cast<const T*>(args.x.data)[place.x]);
    }

    // The bit of the element that begins the row.
    __device__ unsigned starts(int t) const
    {
        const int ahead = rest - static_cast<int>(args.n);
        return t == 0 && static_cast<int>(threadIdx.x) == ahead / I ? 1u << ahead % I : 0;
    }

    __device__ void flip(Vector (&word)[U]) const
    {
        if (!back()) return;
#pragma unroll
        for (int u = 0; u < U; ++u) word[u] = Memory::flipped(word[u]);
    }

    __device__ Head all_heads(int parity) { return joined(&shared.heads[parity * kLongWarps], kLongWarps, K::empty()); }
    __device__ Far all_tails() { return K::far(joined(&shared.tails[0], kLongWarps, K::nothing())); }

    __device__ void find_head(int t, uint4* stage, int parity)
    {
        Vector xs[U];
        read(stage, xs, t, static_cast<T>(K::pad(args)));
        Cell cell;
        cell.begin(args);
        if constexpr (kBased<K>) cell.base = base;
        const Head own = cell.head(Elements<A, T, V, U>{xs}, starts(t)), all = heads_up_to<K>(own, lane);
        if constexpr (kTame<K>) faults |= cell.faults | K::faults(all);
        if (lane == 31) shared.heads[parity * kLongWarps + warp] = all;
    }

    // Bits of the elements of a thread.
    using Bits = std::conditional_t<I == 8, unsigned char, std::conditional_t<I == 16, unsigned short, unsigned>>;

    __device__ void find_records(int t, uint4* stage);
    __device__ void settle(const Head& ahead);

    // The elements of a thread in a tile.
    struct Own {
        Vector xs[U], ys[U];
        Cell cell;
        Kept kept;

        __device__ auto x() const { return Elements<A, T, V, U>{xs}; }
        __device__ auto y() const { return Elements<A, T, V, U>{ys}; }
        __device__ void renew_all()
        {
            if constexpr (X) renew(xs);
            renew(ys);
        }
    };

    __device__ void load(Own& own, int t, uint4* stage) const
    {
        if constexpr (X) read(stage, own.xs, t, static_cast<T>(K::pad(args)));
        read_dy(stage + (X ? OPERAND : 0), own.ys, t);
        own.cell.begin(args);
        if constexpr (kRecorded<K>) own.cell.records = reinterpret_cast<const Bits*>(stage + OPERAND)[threadIdx.x];
        if constexpr (kBased<K>) own.cell.base = base;
    }

    // The thread's tail becomes what the rest of its warp makes of what enters that.
    __device__ void join_tails(Tail& own)
    {
        const Tail all = tails_down_to<K>(own, 31 - lane);
        if (lane == 0) shared.tails[warp] = all;
        own = from_above(all, 1);
        if (lane == 31) own = K::nothing();
    }

    // Finds what enters the thread, and what the rest of the tile makes of what enters it; the tail of the tile is told, or joined.
    __device__ void join_tile(Own& own, int t)
    {
        Head& in_warp = own.kept.head;
        Tail& tail_of_thread = own.kept.tail;
        if (threadIdx.x == 0) {
            if constexpr (K::HEAD) shared.head[0] = K::join(head, next);
            shared.tail[0] = K::near(tail);
        }
        if constexpr (!K::ORDERED) tail_of_thread = own.cell.tail(own.x(), own.y(), starts(t));
        if constexpr (K::HEAD) {
            if constexpr (kTogether<K>)
                in_warp = own.cell.product;
            else
                in_warp = own.cell.head(own.x(), starts(t));
            const Head all = heads_up_to<K>(in_warp, lane);
            if (lane == 31) shared.heads[warp] = all;
            in_warp = from_below(all, 1);
            if (lane == 0) in_warp = K::empty();
        }
        if constexpr (!K::ORDERED) join_tails(tail_of_thread);
        __syncthreads();
        own.renew_all();
        if constexpr (K::HEAD) {
            this->foresee(t - team());
            in_warp = K::join(K::join(shared.head[0], joined(&shared.heads[0], warp, K::empty())), in_warp);
            own.cell.enter(in_warp, own.x(), own.y(), starts(t));
        }
        if constexpr (K::ORDERED) {
            tail_of_thread = own.cell.tail(own.x(), own.y(), starts(t));
            join_tails(tail_of_thread);
            __syncthreads();
        }
        if (charged()) {
            if (hold)
                Told<K>::tell(this->tail_of(t), all_tails());
            else
                tail = K::join(all_tails(), tail);
        }
        tail_of_thread = K::join(tail_of_thread, joined(&shared.tails[0] + warp + 1, kLongWarps - 1 - warp, K::nothing()));
    }

    // Goes on with a tile of which is known what is kept.
    __device__ void resume(Own& own, int t, uint4* stage)
    {
        this->learn(t);
        load(own, t, stage);
        if constexpr (K::HEAD) {
            if constexpr (kTogether<K>)
                own.cell.tail(own.x(), own.y(), starts(t));
            else
                own.cell.head(own.x(), starts(t));
            own.cell.enter(own.kept.head, own.x(), own.y(), starts(t));
        }
    }

    __device__ void find_tail(int t, uint4* stage)
    {
        Own own;
        if (!TEAM || t >= 0) {
            load(own, t, stage);
            join_tile(own, t);
        }
        if (!TEAM && this->phase() == kTails) return;
        if (TEAM && hold) {  // this tile waits for a turn
            if constexpr (kTame<K>) faults |= own.cell.faults;
            const Kept kept = own.kept;
            own.kept = shared.kept[threadIdx.x], shared.kept[threadIdx.x] = kept;
            t += team(), stage = stage == this->ring ? stage + (this->stages - 1) * STAGE : stage - STAGE;
            if (t >= tiles()) return;
            resume(own, t, stage);
        }
        own.renew_all();
        Vector(&out)[U] = own.ys;
        own.cell.finish(K::join(own.kept.tail, shared.tail[0]), own.x(), own.y(), starts(t),
                        [&](int u, const A(&dx)[V]) { out[u] = Memory::packed(dx); });
        if constexpr (kTame<K>) faults |= own.cell.faults;
        store(stage + (X ? OPERAND : 0), out, t);
    }
};

template <typename K, typename T>
__device__ void long_rows(const ScanArgs& args)
{
    using First = TameKind<K, T>;
    extern __shared__ __align__(128) uint4 ring[];
    __shared__ typename Long<First, T>::Shared shared;
    if (kTamed<K> && blockIdx.x + threadIdx.x == 0) args.bad[args.strips] = 0;  // blocks that do rows again have not met
    Long<First, T>(args, shared, ring).run();
}
