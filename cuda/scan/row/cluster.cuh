// Rows that blocks hold together, a piece each, in registers, so that memory is read once: a block tells the others what its piece comes to,
// and hears what theirs do, while its next piece comes to shared memory. Blocks of a cluster leave it in each other's shared memory; of a row
// that is longer they are all on the device at once, and tell it through memory.
//
// For kinds that read numbers. Of those that are tried first, what is against a row is told by each of its blocks.
#pragma once

#include "common/async_copy.cuh"
#include "common/cluster.cuh"
#include "scan/row/packed_resident_tiled.cuh"
#include "scan/state/tile_status.cuh"

// Threads of a multiprocessor, all of which a block may have, and vectors of each operand that each of them owns: many elements, as those of
// one thread wait for no other.
constexpr int kPieceThreads = 512;
constexpr int kPieceVectors = 8;
constexpr int kHearing = 8;  // warps of a block, at most, that hear 32 others each

// A thread of a block, whose pieces are at the same place of every so many rows. Rows of all operands run the same way and consist of whole
// aligned vectors; vectors u * 32 + l of a warp come and go by lane l, which owns vectors l * U + u. The room of a warp is for x, dy and dx.
template <typename K, typename T>
struct Piece {
    using A = typename K::Number;
    using Head = typename K::Head;
    using Tail = typename K::Tail;
    static constexpr int V = 16 / sizeof(T), U = kPieceVectors, I = U * V;
    static constexpr bool SHORT = K::ORDERED && sizeof(T) == 2;  // there is more to reckon for each byte, and no time to lose:
    static constexpr bool PACED = !SHORT || kHolds<K>;           // cells that hold less ask for nothing while blocks meet
    static constexpr int AGAIN = kAgain<K, V, U> / V;  // vectors of x that are kept until the end
    using Cell = typename K::template Cell<I, V, false>;
    using Vector = Words<T, V>;
    using Vectors = Line<T, U, true>;  // their places in the room

    // What a block knows of a row.
    struct Shared {
        Room<Head, 32> heads;  // totals of warps
        Room<Tail, 32> tails;
        Room<Head, kHearing> head;  // what enters the piece, of 32 others each
        Room<Tail, kHearing> tail;
        Room<Head, kClusterBlocks> ahead;  // what others of the cluster leave
        Room<Tail, kClusterBlocks> behind;
        Barrier come[2];  // of what is told at once, and of what is told when that is heard
    };

    const ScanArgs& args;
    uint4* room;
    Shared* rows;  // two, by turns: some warp may not be done with the row before, and all of its pieces are heard before one is told again
    int pieces = static_cast<int>(args.parts), lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    unsigned row = blockIdx.x / static_cast<unsigned>(pieces), apart = gridDim.x / static_cast<unsigned>(pieces), turn = 0;
    int piece = static_cast<int>(blockIdx.x - row * pieces);
    int count;     // vectors of the warp that exist
    int from;      // bytes from the first element of a row to the first vector that comes by this lane
    uint4& first;  // the vector of the first x of a row, for the warp

    __device__ Piece(const ScanArgs& args, uint4* room, Shared* rows, uint4& first) : args(args), room(room), rows(rows), first(first)
    {
        const int ahead = (piece * static_cast<int>(blockDim.x) + warp * 32) * I;
        count = opaque(max(min(static_cast<int>(args.n) - ahead, 32 * I), 0) / V);
        from = opaque((backward() ? 1 - V - ahead - lane * V : ahead + lane * V) * static_cast<int>(sizeof(T)));
        Vector none;
#pragma unroll
        for (int v = 0; v < V; ++v) none.set(v, static_cast<T>(K::pad(args)));
#pragma unroll 1
        for (int m = count + lane; m < 32 * U; m += 32) {  // what does not exist never comes
            none.store(reinterpret_cast<T*>(room + Vectors::place(m)));
            room[32 * U + Vectors::place(m)] = uint4{0, 0, 0, 0};
        }
    }

    __device__ Shared& shared() const { return rows[turn & 1]; }
    __device__ unsigned starts() const { return piece == 0 && threadIdx.x == 0; }  // element 0 of the thread begins a row
    __device__ bool spread() const { return pieces > kClusterBlocks; }  // over the device
    __device__ bool backward() const { return args.dx.step < 0; }
    __device__ bool repeats() const { return args.dy.step == 0; }  // one number for all dy of a row
    __device__ bool plain() const { return count == 32 * U && args.dy.step > 0; }
    __device__ int beside() const { return backward() ? -32 * 16 : 32 * 16; }  // bytes from a vector to the next of the lane

    // The first element of a row.
    __device__ char* begin(const Strided& operand, unsigned row) const
    {
        return operand.data + (operand.first + row * operand.stride[0]) * static_cast<i64>(sizeof(T));
    }

    template <int FIRST, int END>
    __device__ void ask(unsigned row);
    template <int M, int END>
    __device__ void ask_plain(unsigned even, unsigned odd, const char* from) const;
    __device__ void read(Vector (&word)[U], uint4* from) const;
    __device__ void repeat(Vector (&word)[U]) const;
    __device__ void keep(Vector (&word)[U]) const;
    __device__ void remember(Vector (&word)[U]) const;
    __device__ void write(Vector (&word)[U]) const;
    __device__ void flip(Vector (&word)[U]) const;

    // Lane 0 gets the joins of so many lanes.
    template <bool HEADS, bool TAILS>
    __device__ void join(Head& head, Tail& tail, int count) const
    {
#pragma unroll 1
        for (int d = 1; d < count; d *= 2) {
            if (HEADS) head = K::join(head, from_above(head, d));
            if (TAILS) tail = K::join(tail, from_above(tail, d));
        }
    }

    // What lanes ahead of this one hold, and those behind it.
    __device__ Head heads_of_lanes(const Head& own) const
    {
        const Head all = heads_up_to<K>(own, lane);
        if (lane == 31) shared().heads[warp] = all;
        const Head next = from_below(all, 1);
        return lane == 0 ? K::empty() : next;
    }
    __device__ Tail tails_of_lanes(const Tail& own) const
    {
        const Tail all = tails_down_to<K>(own, 31 - lane);
        if (lane == 0) shared().tails[warp] = all;
        const Tail next = from_above(all, 1);
        return lane == 31 ? K::nothing() : next;
    }

    __device__ bool early() const { return SHORT && PACED && !spread(); }  // asks for half of the next vectors before blocks meet

    // What lanes are met by in a warp becomes what they are met by in the row. Those that are PACED ask for a quarter of the next vectors
    // meanwhile, and for one more where blocks meet once and are slow to hear each other.
    template <bool HEADS, bool TAILS, int FIRST>
    __device__ void meet(Head& head, Tail& tail)
    {
        Shared& s = shared();
        __syncthreads();
        if (warp == 0) tell<HEADS, TAILS>();
        Head ahead = HEADS && lane < warp ? s.heads[lane] : K::empty();
        Tail behind = TAILS && warp + 1 + lane < warps ? s.tails[warp + 1 + lane] : K::nothing();
        join<HEADS, TAILS>(ahead, behind, warps);
        if (HEADS) head = K::join(from_lane(ahead, 0), head);
        if (TAILS) tail = K::join(tail, from_lane(behind, 0));
        if (warp * 32 < pieces)
            hear<HEADS, TAILS>();
        else if (PACED && spread())
            asm volatile("cp.async.wait_all;" ::: "memory");  // what is told does not come behind it
        if (PACED && !(HEADS && early())) ask<FIRST, FIRST + U / 4>(row + apart);
        if (!K::ORDERED && spread()) ask<U / 2, U * 3 / 4>(row + apart);
        __syncthreads();
        ahead = s.head[0], behind = s.tail[0];
#pragma unroll 1
        for (int w = 1; w * 32 < pieces; ++w) {
            if (HEADS) ahead = K::join(ahead, s.head[w]);
            if (TAILS) behind = K::join(behind, s.tail[w]);
        }
        if (HEADS) head = K::join(ahead, head);
        if (TAILS) tail = K::join(tail, behind);
    }

    // What a piece of the row is told to come to.
    __device__ uint4* head_of(int piece) const { return Told<K>(args).heads + (static_cast<i64>(row) * pieces + piece) * Told<K>::template PACKETS<Head>; }
    __device__ uint4* tail_of(int piece) const { return Told<K>(args).tails + (static_cast<i64>(row) * pieces + piece) * Told<K>::template PACKETS<Tail>; }

    // Tells other blocks what the warps of this one come to.
    template <bool HEADS, bool TAILS>
    __device__ void tell()
    {
        Shared& s = shared();
        Head head = HEADS && lane < warps ? s.heads[lane] : K::empty();
        Tail tail = TAILS && lane < warps ? s.tails[lane] : K::nothing();
        join<HEADS, TAILS>(head, tail, warps);
        if (spread()) {
            if (HEADS && lane == 0) Told<K>::tell(head_of(piece), head);
            if (TAILS && lane == 0) Told<K>::tell(tail_of(piece), tail);
            return;
        }
        if (HEADS) head = from_lane(head, 0);
        if (TAILS) tail = from_lane(tail, 0);
        if (HEADS && lane > piece && lane < pieces) s.come[!HEADS].leave(lane, s.ahead[piece], head);
        if (TAILS && lane < piece) s.come[!HEADS].leave(lane, s.behind[piece], tail);
    }

    // Lets in what the others come to: lane l of warp w hears piece w * 32 + l.
    template <bool HEADS, bool TAILS>
    __device__ void hear()
    {
        Shared& s = shared();
        const int other = warp * 32 + lane;
        const bool ahead = HEADS && other < piece, behind = TAILS && other > piece && other < pieces;
        Head head = K::empty();
        Tail tail = K::nothing();
        if (spread()) {
            if (ahead) head = Told<K>::template hear<Head>(head_of(other));
            if (behind) tail = Told<K>::template hear<Tail>(tail_of(other));
        } else {
            const int heads = HEADS ? piece : 0, tails = TAILS ? pieces - 1 - piece : 0;
            if (lane == 0) s.come[!HEADS].expect(heads * static_cast<int>(sizeof(Head)) + tails * static_cast<int>(sizeof(Tail)));
            s.come[!HEADS].wait(turn >> 1);
            if (ahead) head = s.ahead[lane];
            if (behind) tail = s.behind[lane];
        }
        __syncwarp();
        join<HEADS, TAILS>(head, tail, min(pieces, 32));
        if (HEADS && lane == 0) s.head[warp] = head;
        if (TAILS && lane == 0) s.tail[warp] = tail;
    }

    // The piece of a row; returns what is against it.
    __device__ unsigned run()
    {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncwarp();
        Vector xs[U], ys[U];
        const Elements<A, T, V, U> x{xs}, y{ys};
        read(xs, room);
        if (repeats())
            repeat(ys);
        else
            read(ys, room + 32 * U);
        Cell cell;
        cell.begin(args);
        if constexpr (kBased<K>) cell.base = widen<A>(reinterpret_cast<const T*>(&first)[backward() ? V - 1 : 0]);
        keep(xs);
        __syncwarp();
        ask<0, U / 4>(row + apart);
        if (early()) ask<U / 4, U / 2>(row + apart);
        Head head;
        Tail tail;
        if constexpr (kTogether<K>) {
            tail = cell.tail(x, y, starts());
            head = heads_of_lanes(cell.product);
            tail = tails_of_lanes(tail);
        } else {
            head = heads_of_lanes(cell.head(x, starts()));
        }
        meet<true, !K::ORDERED, U / 4>(head, tail);
        if (!PACED) ask<U / 4, U / 2>(row + apart);
        renew(xs), renew(ys);
        cell.enter(head, x, y, starts());
        if constexpr (K::ORDERED) {
            tail = tails_of_lanes(cell.tail(x, y, starts()));
            meet<false, true, U / 2>(head, tail);
        }
        if (!K::ORDERED && !spread()) ask<U / 2, U * 3 / 4>(row + apart);
        ask<PACED ? U * 3 / 4 : U / 2, U>(row + apart);
        remember(xs), renew(ys);
        cell.finish(tail, x, y, starts(), [&](int u, const A(&dx)[V]) { ys[u] = Vectors::packed(dx); });
        write(ys);
        if constexpr (kTame<K>) return lane * U < count ? cell.faults : 0;
        return 0;
    }
};

template <typename K, typename T>
__device__ void pieces(const ScanArgs& args)
{
    if constexpr (kClusters) {
        using Own = Piece<TameKind<K, T>, T>;
        extern __shared__ __align__(128) uint4 rooms[];
        __shared__ typename Own::Shared rows[2];
        __shared__ unsigned found[2];  // the faults of both
        __shared__ uint4 firsts[kPieceThreads / 32];
        Own own(args, rooms + threadIdx.x / 32 * 32 * 3 * Own::U, rows, firsts[threadIdx.x / 32]);
        own.template ask<0, Own::U>(own.row);
        if (threadIdx.x < 2) found[threadIdx.x] = 0;
        if (kTamed<K> && blockIdx.x + threadIdx.x == 0) args.bad[args.strips * args.parts] = 0;  // blocks that do rows again have not met
        if (threadIdx.x < 4) rows[threadIdx.x / 2].come[threadIdx.x % 2].open();
        __syncthreads();
        meet_cluster();
        const auto tell = [&](unsigned& faults, unsigned row) {
            if (threadIdx.x != 0 || own.turn == 0) return;
            args.bad[static_cast<i64>(row) * own.pieces + own.piece] = static_cast<int>(faults);
            faults = 0;
        };
#pragma unroll 1
        for (; args.strips > own.row; own.row += own.apart, ++own.turn) {
            const unsigned faults = own.run();
            if constexpr (!kTamed<K>) continue;
            const int k = own.turn & 1;
            const unsigned all = __reduce_or_sync(0xffffffff, faults);
            if (all && own.lane == 0) atomicOr(&found[k], all);
            tell(found[k ^ 1], own.row - own.apart);  // all warps are done with that row
        }
        __syncthreads();
        if constexpr (kTamed<K>) tell(found[own.turn + 1 & 1], own.row - own.apart);
        meet_cluster();
    }
}
