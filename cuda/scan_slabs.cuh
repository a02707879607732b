// Strips of columns that lie side by side in aligned rows, each held by the blocks of a cluster, a slab of rows each, in registers, so that
// memory is read once: a block tells the others what the columns of its slab come to, and hears what theirs do, while its next slab comes to
// shared memory.
//
// For kinds that are tried first. What is against a strip is told by each of its blocks.
#pragma once

#include "scan_cluster.cuh"
#include "scan_inner.cuh"

constexpr int kSlabThreads = 512;  // of a block, at most
constexpr int kSlabSeen = 8;       // rows of a strip whose numbers make its bases

// Bytes of a row of a strip, as a rule a line of a cache; a thread owns as many of each operand.
template <typename K, typename T>
constexpr int kSlabSide = kHolds<K> && sizeof(T) == 2 ? 64 : 128;

// A thread of a block, whose slabs are at the same place of every so many strips. It owns R rows of a column; the lanes that own a row are a
// group, or those of two warps are. The room of a warp is for its x and dy, row by row.
template <typename K, typename T>
struct Slab {
    using A = typename K::Number;
    using Head = typename K::Head;
    using Tail = typename K::Tail;
    static constexpr int COLUMNS = kSlabSide<K, T> / sizeof(T), R = COLUMNS, N = 8;
    static constexpr int BESIDE = COLUMNS > 32 ? COLUMNS / 32 : 1;  // warps that own the same rows
    static constexpr int LANES = COLUMNS / BESIDE, GROUPS = 32 / LANES, ROWS = GROUPS * R;
    static constexpr int SIDE = LANES * sizeof(T) / 16, DOWN = 32 / SIDE, U = ROWS / DOWN;  // vectors of a row; rows that lanes ask for at once; how often
    static constexpr int OPERAND = 32 * U, ROOM = 2 * OPERAND + (kBased<K> ? kSlabSeen * SIDE : 0);
    using Cell = typename K::template Cell<R, N, false>;
    static constexpr int PER = Words<T, 2>::PER_WORD;  // rows of a column in a word
    using Word = Words<T, PER>;

    // Of two strips by turns: what the columns of warps come to, and those of other blocks, [warp or block][column].
    struct Shared {
        Room<Head, kSlabThreads / 32 * LANES> heads;
        Room<Tail, kSlabThreads / 32 * LANES> tails;
        Room<Head, kClusterBlocks * COLUMNS> ahead;
        Room<Tail, kClusterBlocks * COLUMNS> behind;
        Room<Head, COLUMNS> head;  // the join of these
        Room<Tail, COLUMNS> tail;
        Barrier come[2];  // of what is told at once, and of what is told when that is heard
    };

    const ScanArgs& args;
    Shared* boxes;
    uint4* room;
    int pieces = static_cast<int>(args.parts), warp = threadIdx.x / 32 / BESIDE, warps = blockDim.x / 32 / BESIDE;
    int lane = threadIdx.x % 32, place = lane % LANES, group = lane / LANES;
    int ahead = threadIdx.x / 32 % BESIDE * LANES, column = ahead + place;  // columns ahead of those of the warp; that of the lane in the strip
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
        const int row = lane / SIDE, side = lane % SIDE * 16, size = sizeof(T);
        if (side >= (item.held - ahead) * size) return;
        const auto rows = [&](const Strided& from, i64 begin, int first, int count, int most, unsigned to) {
            const i64 apart = from.step * size;
            const char* p = from.data + (begin + ahead) * size + (first + row) * apart + side;
#pragma unroll
            for (int r = 0; r < most; r += DOWN, p += DOWN * apart)
                if (r + row < count) fetch(to + (r + row) * SIDE * 16 + side, p);
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

    // Of two lanes that are side by side one has a row of both columns and one the next row: they exchange them for two rows of its column.
    __device__ Word turned(Word word) const
    {
        if constexpr (PER == 2) word.word[0] = __byte_perm(word.word[0], from_lane(word.word[0], lane ^ 1), lane % 2 ? 0x3276 : 0x5410);
        return word;
    }

    __device__ void read(Word (&word)[R / PER], const uint4* from) const
    {
#pragma unroll
        for (int r = 0; r < R / PER; ++r) {
            word[r].load(reinterpret_cast<const T*>(from + (group * R + r * PER + lane % PER) * SIDE) + place / PER * PER);
            word[r] = turned(word[r]);
        }
    }

    __device__ void write(const Word (&word)[R / PER], const Item& item) const
    {
        const int row = group * R + lane % PER, left = column < item.held ? rest - row : 0;
        T* dx = reinterpret_cast<T*>(args.dx.data) + item.place.dx + column / PER * PER + (first + row) * args.dx.step;
        const i64 apart = PER * args.dx.step;
        if (__all_sync(0xffffffff, left >= R - PER + 1)) {
#pragma unroll
            for (int r = 0; r < R / PER; ++r, dx += apart) turned(word[r]).store(dx);
        } else {
#pragma unroll
            for (int r = 0; r < R / PER; ++r, dx += apart) {
                const Word two = turned(word[r]);
                if (r * PER < left) two.store(dx);
            }
        }
    }

    // What a group of the warp is met by; what the warp comes to is left to the others.
    __device__ Head meet_groups(Head head) const
    {
#pragma unroll
        for (int d = LANES; d < 32; d *= 2) {
            const Head left = from_below(head, d);
            if (lane >= d) head = K::join(left, head);
        }
        if (group == GROUPS - 1) shared().heads[warp * COLUMNS + column] = head;
        if (GROUPS > 1) head = from_below(head, LANES);
        return group == 0 ? K::empty() : head;
    }
    __device__ Tail meet_groups(Tail tail) const
    {
#pragma unroll
        for (int d = LANES; d < 32; d *= 2) {
            const Tail right = from_above(tail, d);
            if (lane + d < 32) tail = K::join(tail, right);
        }
        if (group == 0) shared().tails[warp * COLUMNS + column] = tail;
        if (GROUPS > 1) tail = from_above(tail, LANES);
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
        Word xs[R / PER], ys[R / PER];
        const Elements<A, T, PER, R / PER> x{xs}, y{ys};
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
            const Pack<T, N> pack = narrowed<T, N>(dx);
#pragma unroll
            for (int i = 0; i < N; ++i) ys[(c * N + i) / PER].set(i % PER, pack.at[i]);
        });
        const Item item = locate(strip);
        write(ys, item);
        return column < item.held && group * R < rest ? cell.faults : 0;
    }

    __device__ A base() const
    {
        const T* seen = reinterpret_cast<const T*>(room + 2 * OPERAND) + place;
        A largest = seen[0];
#pragma unroll
        for (int r = 1; r < kSlabSeen; ++r) largest = fmax(largest, seen[r * LANES]);
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
