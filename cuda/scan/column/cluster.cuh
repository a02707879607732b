// Strips of columns that lie side by side in aligned rows, each held by the blocks of a cluster, a slab of rows each, in registers, so that
// memory is read once: a block tells the others what the columns of its slab come to, and hears what theirs do, while its next slab comes to
// shared memory.
//
// For kinds that are tried first. What is against a strip is told by each of its blocks.
#pragma once

#include "common/cluster.cuh"
#include "scan/tile/row_tile.cuh"

constexpr int kSlabThreads = 512;  // of a block, at most
constexpr int kSlabSeen = 8;       // rows of a strip whose numbers make its bases

constexpr int kSlabSide = 128;     // bytes of a row of a strip, a line of a cache

// A thread of a block, whose slabs are at the same place of every so many strips. It owns R rows of the columns that are in a word; the lanes
// that own a row are a group. The room of a warp is for its x and dy, row by row, for the first rows of the strip, and for x that is taken again.
template <typename K, typename T>
struct Slab {
    using A = typename K::Number;
    static constexpr int COLUMNS = kSlabSide / sizeof(T), PER = Words<T, 2>::PER_WORD;
    static constexpr int LANES = COLUMNS / PER, GROUPS = 32 / LANES, ROWS = 32, R = ROWS / GROUPS, N = 8;
    static constexpr int SIDE = kSlabSide / 16, DOWN = 32 / SIDE;  // vectors of a row; rows that lanes ask for at once
    static constexpr int AGAIN = kAgain<K, PER, R> / PER;  // rows of a lane
    static constexpr int OPERAND = ROWS * SIDE, SEEN = kBased<K> ? kSlabSeen * SIDE : 0, ROOM = 2 * OPERAND + SEEN + AGAIN * GROUPS * SIDE;
    using Cell = typename K::template Cell<R, N, false>;
    using Word = Words<T, PER>;
    using Column = Elements<A, T, PER, R, true>;

    // What the columns of a lane come to.
    template <typename S>
    struct alignas(PER * sizeof(S)) Each {
        S at[PER];

        __device__ static Each of(const S& s)
        {
            Each each;
#pragma unroll
            for (int k = 0; k < PER; ++k) each.at[k] = s;
            return each;
        }
        __device__ friend Each joined(const Each& l, const Each& r)
        {
            Each each;
#pragma unroll
            for (int k = 0; k < PER; ++k) each.at[k] = K::join(l.at[k], r.at[k]);
            return each;
        }
    };
    using Heads = Each<typename K::Head>;
    using Tails = Each<typename K::Tail>;

    // What the columns of other blocks come to, [block][lane]: heads of all but the last one, tails of all but the first one.
    struct Box {
        Room<Heads, (kClusterBlocks - 1) * LANES> ahead;
        Room<Tails, (kClusterBlocks - 1) * LANES> behind;
        Barrier come[2];  // of what is told at once, and of what is told when that is heard
    };
    struct Shared {
        Room<Heads, kSlabThreads / 32 * LANES> heads;  // of warps, [warp][lane]
        Room<Tails, kSlabThreads / 32 * LANES> tails;
        Room<Heads, LANES> head;  // the join of those of blocks
        Room<Tails, LANES> tail;
        Box boxes[2];  // of strips by turns
    };

    const ScanArgs& args;
    Shared& shared;
    uint4* room;
    int pieces = static_cast<int>(args.parts), warp = threadIdx.x / 32, warps = blockDim.x / 32;
    int lane = threadIdx.x % 32, place = lane % LANES, group = lane / LANES;
    unsigned strip = blockIdx.x / static_cast<unsigned>(pieces), apart = gridDim.x / static_cast<unsigned>(pieces), turn = 0;
    int piece = static_cast<int>(blockIdx.x - strip * pieces);
    int first, rest;  // the row of the warp, and how many of its rows exist

    __device__ Slab(const ScanArgs& args, Shared& shared, uint4* rooms) : args(args), shared(shared), room(rooms + threadIdx.x / 32 * ROOM)
    {
        first = opaque((piece * warps + warp) * ROWS);
        rest = opaque(max(min(static_cast<int>(args.n) - first, ROWS), 0));
        Words<T, 16 / sizeof(T)> none;
#pragma unroll
        for (int v = 0; v < 16 / static_cast<int>(sizeof(T)); ++v) none.set(v, static_cast<T>(K::pad(args)));
#pragma unroll 1
        for (int m = lane; m < OPERAND; m += 32) {  // what does not exist never comes
            if (place_of_row(m / SIDE) < rest) continue;
            none.store(reinterpret_cast<T*>(room + m));
            room[OPERAND + m] = uint4{0, 0, 0, 0};
        }
        if constexpr (kBased<K>) {
            for (int m = lane; m < kSlabSeen * SIDE; m += 32) none.store(reinterpret_cast<T*>(room + 2 * OPERAND + m));
        }
    }

    // Where a row is in the room, and which row is there: lest groups read from the same banks, rows of the second one are exchanged in pairs.
    static __device__ constexpr int place_of_row(int row) { return row ^ row / R; }

    // Where a strip is; its columns.
    struct Item {
        Places place;
        int held;
    };
    __device__ Item locate(unsigned strip) const
    {
        const unsigned side = static_cast<unsigned>((args.extent[0] + COLUMNS - 1) / COLUMNS), outer = args.dims == 1 ? 0 : strip / side;
        const i64 column = static_cast<i64>(strip - outer * side) * COLUMNS;
        Places p = Places::of(args, 1, outer);
        p.dy += column, p.x += column, p.dx += column;
        return {p, static_cast<int>(min(args.extent[0] - column, static_cast<i64>(COLUMNS)))};
    }

    // Whether all of it exists. Not by `rest`: ptxas 13.0.88 compares what is both a least and a most with one of the two wrongly.
    __device__ bool whole(const Item& item) const { return item.held == COLUMNS && first + ROWS <= static_cast<int>(args.n); }

    __device__ void ask(unsigned strip) const;
    template <int M>
    static __device__ void ask_all(unsigned even, unsigned odd, const char* from, i64 apart);
    __device__ void read(Word (&word)[R], const uint4* from) const;
    __device__ void keep(const Word (&word)[R]) const;
    __device__ void remember(Word (&word)[R]) const;
    __device__ void write(const Word (&word)[R], const Item& item) const;
    __device__ T* kept(int r) const { return reinterpret_cast<T*>(room + 2 * OPERAND + SEEN) + (r * 32 + lane) * PER; }

    // A vector; the whole line of the cache comes with it, as the strip beside this one asks for the rest where rows do not begin with lines.
    template <int TO = 0>
    static __device__ void fetch(unsigned to, const char* from)
    {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0 + %2], [%1], 16;" ::"r"(to), "l"(from), "n"(TO) : "memory");
    }

    // What a group of the warp is met by; what the warp comes to is left to the others.
    __device__ Heads meet_groups(Heads head) const
    {
#pragma unroll
        for (int d = LANES; d < 32; d *= 2) {
            const Heads left = from_below(head, d);
            if (lane >= d) head = joined(left, head);
        }
        if (group == GROUPS - 1) shared.heads[warp * LANES + place] = head;
        if (GROUPS > 1) head = from_below(head, LANES);
        return group == 0 ? Heads::of(K::empty()) : head;
    }
    __device__ Tails meet_groups(Tails tail) const
    {
#pragma unroll
        for (int d = LANES; d < 32; d *= 2) {
            const Tails right = from_above(tail, d);
            if (lane + d < 32) tail = joined(tail, right);
        }
        if (group == 0) shared.tails[warp * LANES + place] = tail;
        if (GROUPS > 1) tail = from_above(tail, LANES);
        return group == GROUPS - 1 ? Tails::of(K::nothing()) : tail;
    }

    // What groups are met by becomes what they are met by in the block; what enters that is in shared memory then.
    template <bool HEADS, bool TAILS>
    __device__ void meet(Heads& head, Tails& tail)
    {
        Box& box = shared.boxes[turn & 1];
        const Barrier& barrier = box.come[!HEADS];
        const Heads empty = Heads::of(K::empty());
        const Tails nothing = Tails::of(K::nothing());
        __syncthreads();
#pragma unroll 1
        for (int other = warp * GROUPS + group; other < pieces; other += warps * GROUPS) {
            if (HEADS && other > piece) barrier.leave(other, box.ahead[piece * LANES + place], sum(&shared.heads[0], 0, warps, empty));
            if (TAILS && other < piece) barrier.leave(other, box.behind[(piece - 1) * LANES + place], sum(&shared.tails[0], 0, warps, nothing));
        }
        __syncwarp();
        if (threadIdx.x == 0) {
            const int states = (HEADS ? piece : 0) * static_cast<int>(sizeof(Heads)) + (TAILS ? pieces - 1 - piece : 0) * static_cast<int>(sizeof(Tails));
            barrier.expect(LANES * states);
        }
        if (HEADS) head = joined(sum(&shared.heads[0], 0, warp, empty), head);
        if (TAILS) tail = joined(tail, sum(&shared.tails[0], warp + 1, warps, nothing));
        if (HEADS && warp == 0) {
            barrier.wait(turn >> 1);
            shared.head[place] = sum(&box.ahead[0], 0, piece, empty);
        }
        if (TAILS && warp == warps - 1) {
            barrier.wait(turn >> 1);
            shared.tail[place] = sum(&box.behind[0], piece, pieces - 1, nothing);
        }
        __syncthreads();
    }

    // The join of what the columns come to in some warps or blocks.
    template <typename S>
    __device__ S sum(const S* room, int from, int to, S all) const
    {
#pragma unroll 4
        for (int i = from; i < to; ++i) all = joined(all, room[i * LANES + place]);
        return all;
    }

    // The slab of a strip; returns what is against it.
    __device__ unsigned run()
    {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncwarp();
        Word xs[R], ys[R];
        read(xs, room), read(ys, room + OPERAND);
        Cell cell[PER];
        const auto each = [&](auto visit) {
#pragma unroll
            for (int k = 0; k < PER; ++k) visit(k, cell[k], Column{xs, k}, Column{ys, k});
        };
        each([&](int k, Cell& cell, const Column&, const Column&) {
            cell.begin(args);
            if constexpr (kBased<K>) cell.base = base(k);
        });
        keep(xs);
        __syncwarp();
        ask(strip + apart);
        const unsigned starts = piece == 0 && warp == 0 && group == 0;
        Heads head;
        Tails tail;
        each([&](int k, Cell& cell, const Column& x, const Column& y) {
            if constexpr (kTogether<K>)
                tail.at[k] = cell.tail(x, y, starts), head.at[k] = cell.product;
            else
                head.at[k] = cell.head(x, starts);
        });
        head = meet_groups(head);
        if constexpr (kTogether<K>) tail = meet_groups(tail);
        meet<true, !K::ORDERED>(head, tail);
        renew(xs), renew(ys);
        head = joined(shared.head[place], head);
        each([&](int k, Cell& cell, const Column& x, const Column& y) { cell.enter(head.at[k], x, y, starts); });
        if constexpr (K::ORDERED) {
            each([&](int k, Cell& cell, const Column& x, const Column& y) { tail.at[k] = cell.tail(x, y, starts); });
            tail = meet_groups(tail);
            meet<false, true>(head, tail);
        }
        remember(xs), renew(ys);
        tail = joined(tail, shared.tail[place]);
        const Item item = locate(strip);
        unsigned faults = 0;
        each([&](int k, Cell& cell, const Column& x, const Column& y) {
            cell.finish(tail.at[k], x, y, starts, [&](int c, const A(&dx)[N]) {
                const Pack<T, N> pack = narrowed<T, N>(dx);
#pragma unroll
                for (int i = 0; i < N; ++i) ys[c * N + i].replace(k, pack.at[i]);
            });
            if (place * PER + k < item.held) faults |= cell.faults;
        });
        write(ys, item);
        return group * R < rest ? faults : 0;
    }

    __device__ A base(int k) const
    {
        const T* seen = reinterpret_cast<const T*>(room + 2 * OPERAND) + place * PER + k;
        A largest = seen[0];
#pragma unroll
        for (int r = 1; r < kSlabSeen; ++r) largest = fmax(largest, seen[r * COLUMNS]);
        return K::base(seen[0], largest);
    }
};

// Multiprocessors of compute capability 12 have less shared memory.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 1200
constexpr bool kSlabs = kClusters;
#else
constexpr bool kSlabs = false;
#endif

template <typename K, typename T>
__device__ void slabs(const ScanArgs& args)
{
    if constexpr (kSlabs) {
        using Own = Slab<TameKind<K, T>, T>;
        extern __shared__ __align__(128) uint4 rooms[];
        __shared__ typename Own::Shared shared;
        Own own(args, shared, rooms);
        __syncwarp();
        own.ask(own.strip);
        if (threadIdx.x < 4) shared.boxes[threadIdx.x / 2].come[threadIdx.x % 2].open();
        if (own.piece == 0)  // its blocks have told nothing against a strip, nor have those met that do some again
            for (unsigned i = own.strip + threadIdx.x * own.apart; i <= args.strips; i += blockDim.x * own.apart) args.bad[i] = 0;
        __syncthreads();
        meet_cluster();
#pragma unroll 1
        for (; own.strip < args.strips; own.strip += own.apart, ++own.turn) {
            const unsigned faults = __reduce_or_sync(0xffffffff, own.run());
            if (faults && own.lane == 0) atomicOr(&args.bad[own.strip], static_cast<int>(faults));
        }
        meet_cluster();
    }
}
