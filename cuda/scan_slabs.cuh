// Strips of columns that lie side by side in aligned rows, each held by the blocks of a cluster, a slab of rows each, in registers, so that
// memory is read once: a block tells the others what the columns of its slab come to, and hears what theirs do, while its next slab comes to
// shared memory.
//
// For kinds that are tried first, of 4 or 8 bytes: as many elements of 2 would not fit into registers, and narrower strips waste memory's
// pace. What is against a strip is told by each of its blocks.
#pragma once

#include "scan_cluster.cuh"
#include "scan_inner.cuh"

constexpr int kSlabThreads = 512;  // of a block, at most
constexpr int kSlabSide = 128;     // bytes of a row of a strip, a line of a cache
constexpr int kSlabBytes = 128;    // of each operand that a thread owns
constexpr int kSlabSeen = 8;       // rows of a strip whose numbers make its bases

// A thread of a block, whose slabs are at the same place of every so many strips. It owns R rows of a column; the lanes that own a row are a
// group. The room of a warp is for x and dy, row by row.
template <typename K, typename T>
struct Slab {
    using A = typename K::Number;
    using Head = typename K::Head;
    using Tail = typename K::Tail;
    static constexpr int COLUMNS = kSlabSide / sizeof(T), GROUPS = 32 / COLUMNS, R = kSlabBytes / sizeof(T), ROWS = GROUPS * R, N = 8;
    static constexpr int SIDE = kSlabSide / 16, DOWN = 32 / SIDE, U = ROWS / DOWN;  // vectors of a row; rows that lanes ask for at once; how often
    static constexpr int OPERAND = 32 * U, ROOM = 2 * OPERAND + (kBased<K> ? kSlabSeen * SIDE : 0);
    using Cell = typename K::template Cell<R, N, false>;
    using Vector = Words<T, 1>;

    // Of two strips by turns: what the columns of warps come to, and those of other blocks, [warp or block][column].
    struct Shared {
        Room<Head, kSlabThreads / 32 * COLUMNS> heads;
        Room<Tail, kSlabThreads / 32 * COLUMNS> tails;
        Room<Head, kClusterBlocks * COLUMNS> ahead;
        Room<Tail, kClusterBlocks * COLUMNS> behind;
        Room<Head, COLUMNS> head;  // the join of these
        Room<Tail, COLUMNS> tail;
        Barrier come[2];  // of what is told at once, and of what is told when that is heard
    };

    const ScanArgs& args;
    Shared* boxes;
    uint4* room;
    int pieces = static_cast<int>(args.parts), warp = threadIdx.x / 32, warps = blockDim.x / 32;
    int lane = threadIdx.x % 32, column = lane % COLUMNS, group = lane / COLUMNS;
    unsigned strip = blockIdx.x / static_cast<unsigned>(pieces), apart = gridDim.x / static_cast<unsigned>(pieces), turn = 0;
    int piece = static_cast<int>(blockIdx.x - strip * pieces);
    int first, rest;  // the row of the warp, and how many of its rows exist

    __device__ Slab(const ScanArgs& args, Shared* boxes, uint4* rooms) : args(args), boxes(boxes), room(rooms + threadIdx.x / 32 * ROOM)
    {
        first = opaque((piece * warps + warp) * ROWS);
        rest = opaque(max(min(static_cast<int>(args.n) - first, ROWS), 0));
        Words<T, 16 / sizeof(T)> none;
#pragma unroll
        for (int v = 0; v < 16 / static_cast<int>(sizeof(T)); ++v) none.set(v, static_cast<T>(K::pad(args)));
#pragma unroll 1
        for (int m = lane; m < OPERAND; m += 32) {  // what does not exist never comes
            if (m / SIDE < rest) continue;
            none.store(reinterpret_cast<T*>(room + m));
            room[OPERAND + m] = uint4{0, 0, 0, 0};
        }
        if constexpr (kBased<K>) {
            for (int m = lane; m < kSlabSeen * SIDE; m += 32) none.store(reinterpret_cast<T*>(room + 2 * OPERAND + m));
        }
    }

    __device__ Shared& shared() const { return boxes[turn & 1]; }

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

    // Lanes that are side by side ask for the vectors of a row.
    __device__ void ask(unsigned strip) const
    {
        if (strip >= args.strips) return;
        const Item item = locate(strip);
        const int row = lane / SIDE, side = lane % SIDE * 16;
        if (side >= item.held * static_cast<int>(sizeof(T))) return;
        const auto rows = [&](const Strided& from, i64 place, int first, int count, int most, unsigned to) {
            const i64 apart = from.step * static_cast<i64>(sizeof(T));
            const char* p = from.data + place * static_cast<i64>(sizeof(T)) + (first + row) * apart + side;
#pragma unroll
            for (int r = 0; r < most; r += DOWN, p += DOWN * apart)
                if (r + row < count) fetch(to + (r + row) * kSlabSide + side, p);
        };
        const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(room));
        rows(args.x, item.place.x, first, rest, ROWS, to);
        rows(args.dy, item.place.dy, first, rest, ROWS, to + OPERAND * 16);
        if constexpr (kBased<K>) rows(args.x, item.place.x, 0, static_cast<int>(min(args.n, static_cast<i64>(kSlabSeen))), kSlabSeen, to + 2 * OPERAND * 16);
    }

    // A vector; the whole line of the cache comes with it, as the strip beside this one asks for the rest where rows do not begin with lines.
    static __device__ void fetch(unsigned to, const char* from)
    {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    }

    __device__ void read(Vector (&word)[R], const uint4* from) const
    {
#pragma unroll
        for (int r = 0; r < R; ++r) word[r].load(reinterpret_cast<const T*>(from + (group * R + r) * SIDE) + column);
    }

    __device__ void write(const Vector (&word)[R], const Item& item) const
    {
        const int left = column < item.held ? rest - group * R : 0;
        T* dx = reinterpret_cast<T*>(args.dx.data) + item.place.dx + column + (first + group * R) * args.dx.step;
        if (left >= R) {
#pragma unroll
            for (int r = 0; r < R; ++r, dx += args.dx.step) word[r].store(dx);
        } else {
#pragma unroll
            for (int r = 0; r < R; ++r, dx += args.dx.step)
                if (r < left) word[r].store(dx);
        }
    }

    // What a group of the warp is met by; what the warp comes to is left to the others.
    __device__ Head meet_groups(Head head) const
    {
#pragma unroll
        for (int d = COLUMNS; d < 32; d *= 2) {
            const Head left = from_below(head, d);
            if (lane >= d) head = K::join(left, head);
        }
        if (group == GROUPS - 1) shared().heads[warp * COLUMNS + column] = head;
        if (GROUPS > 1) head = from_below(head, COLUMNS);
        return group == 0 ? K::empty() : head;
    }
    __device__ Tail meet_groups(Tail tail) const
    {
#pragma unroll
        for (int d = COLUMNS; d < 32; d *= 2) {
            const Tail right = from_above(tail, d);
            if (lane + d < 32) tail = K::join(tail, right);
        }
        if (group == 0) shared().tails[warp * COLUMNS + column] = tail;
        if (GROUPS > 1) tail = from_above(tail, COLUMNS);
        return group == GROUPS - 1 ? K::nothing() : tail;
    }

    // What groups are met by becomes what they are met by in the block; what enters that is in shared memory then.
    template <bool HEADS, bool TAILS>
    __device__ void meet(Head& head, Tail& tail)
    {
        Shared& s = shared();
        const Barrier& barrier = s.come[!HEADS];
        __syncthreads();
#pragma unroll 1
        for (int other = warp * GROUPS + group; other < pieces; other += warps * GROUPS) {
            if (HEADS && other > piece) barrier.leave(other, s.ahead[piece * COLUMNS + column], joined(&s.heads[0], 0, warps, K::empty()));
            if (TAILS && other < piece) barrier.leave(other, s.behind[piece * COLUMNS + column], joined(&s.tails[0], 0, warps, K::nothing()));
        }
        __syncwarp();
        if (threadIdx.x == 0) {
            const int states = (HEADS ? piece : 0) * static_cast<int>(sizeof(Head)) + (TAILS ? pieces - 1 - piece : 0) * static_cast<int>(sizeof(Tail));
            barrier.expect(COLUMNS * states);
        }
        if (HEADS) head = K::join(joined(&s.heads[0], 0, warp, K::empty()), head);
        if (TAILS) tail = K::join(tail, joined(&s.tails[0], warp + 1, warps, K::nothing()));
        if (HEADS && warp == 0) {
            barrier.wait(turn >> 1);
            s.head[column] = joined(&s.ahead[0], 0, piece, K::empty());
        }
        if (TAILS && warp == warps - 1) {
            barrier.wait(turn >> 1);
            s.tail[column] = joined(&s.behind[0], piece + 1, pieces, K::nothing());
        }
        __syncthreads();
    }

    // The join of what the column comes to in some warps or blocks.
    template <typename S>
    __device__ S joined(const S* room, int from, int to, S sum) const
    {
#pragma unroll 4
        for (int i = from; i < to; ++i) sum = K::join(sum, room[i * COLUMNS + column]);
        return sum;
    }

    // The slab of a strip; returns what is against it.
    __device__ unsigned run()
    {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncwarp();
        Vector xs[R], ys[R];
        const Elements<A, T, 1, R> x{xs}, y{ys};
        read(xs, room), read(ys, room + OPERAND);
        Cell cell;
        cell.begin(args);
        if constexpr (kBased<K>) cell.base = base();
        __syncwarp();
        ask(strip + apart);
        const unsigned starts = piece == 0 && warp == 0 && group == 0;
        Head head;
        Tail tail;
        if constexpr (kTogether<K>) {
            tail = cell.tail(x, y, starts);
            head = meet_groups(cell.product);
            tail = meet_groups(tail);
        } else {
            head = meet_groups(cell.head(x, starts));
        }
        meet<true, !K::ORDERED>(head, tail);
        renew(xs), renew(ys);
        cell.enter(K::join(shared().head[column], head), x, y, starts);
        if constexpr (K::ORDERED) {
            tail = meet_groups(cell.tail(x, y, starts));
            meet<false, true>(head, tail);
        }
        renew(xs), renew(ys);
        cell.finish(K::join(tail, shared().tail[column]), x, y, starts, [&](int c, const A(&dx)[N]) {
#pragma unroll
            for (int i = 0; i < N; ++i) ys[c * N + i].set(0, dx[i]);
        });
        const Item item = locate(strip);
        write(ys, item);
        return column < item.held && group * R < rest ? cell.faults : 0;
    }

    __device__ A base() const
    {
        const T* seen = reinterpret_cast<const T*>(room + 2 * OPERAND) + column;
        A largest = seen[0];
#pragma unroll
        for (int r = 1; r < kSlabSeen; ++r) largest = fmax(largest, seen[r * COLUMNS]);
        return K::base(seen[0], largest);
    }
};

template <typename K, typename T>
__device__ void slabs(const ScanArgs& args)
{
    if constexpr (kClusters) {
        using Own = Slab<TameKind<K, T>, T>;
        extern __shared__ __align__(128) uint4 rooms[];
        __shared__ typename Own::Shared boxes[2];
        Own own(args, boxes, rooms);
        __syncwarp();
        own.ask(own.strip);
        if (threadIdx.x < 4) boxes[threadIdx.x / 2].come[threadIdx.x % 2].open();
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
