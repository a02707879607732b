// Rows that some blocks hold together, a piece each, in registers, so that memory is read once: a block tells the others what its piece comes
// to, and hears what theirs do, while its next piece comes to shared memory. They are a cluster, or all blocks are on the device at once.
//
// For kinds that are tried first. What is against a row is told by each of its blocks.
#pragma once

#include "scan_cluster.cuh"
#include "scan_rows.cuh"
#include "scan_team.cuh"

// Threads of a block, at most, with registers for two such blocks on a multiprocessor, and vectors of each operand that each of them owns:
// many elements, as those of one thread wait for no other.
template <typename T>
constexpr int kPieceThreads = sizeof(T) == 8 ? 256 : 192;
constexpr int kPieceVectors = 8;

// A thread of a block, whose pieces are at the same place of every so many rows. Rows of all operands run the same way and consist of whole
// aligned vectors; vectors u * 32 + l of a warp come and go by lane l, which owns vectors l * U + u. The room of a warp is for x, dy and dx.
template <typename K, typename T>
struct Piece {
    using A = typename K::Number;
    using Head = typename K::Head;
    using Tail = typename K::Tail;
    static constexpr int V = 16 / sizeof(T), U = kPieceVectors, I = U * V, PACKETS = Told<K>::template PACKETS<Tail>;
    static_assert(sizeof(Head) <= sizeof(Tail) && Told<K>::template PACKETS<Head> == PACKETS);
    using Cell = typename K::template Cell<I, V, false>;
    using Vector = Words<T, V>;
    using Vectors = Line<T, U, true>;  // their places in the room
    using Box = Letterbox<(sizeof(Tail) + 15) / 16>;

    const ScanArgs& args;
    uint4* room;
    Box* boxes;  // of two rows by turns
    int pieces = static_cast<int>(args.parts), lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    unsigned row = blockIdx.x / static_cast<unsigned>(pieces), apart = gridDim.x / static_cast<unsigned>(pieces), turn = 0;
    int piece = static_cast<int>(blockIdx.x - row * pieces);
    int count;             // vectors of the warp that exist
    int from;              // bytes from the first element of a row to the first vector that comes by this lane
    T first;               // the first x of the next row, as it comes: who widens it waits for it
    RowShared<K>* shared;  // of the row

    __device__ Piece(const ScanArgs& args, uint4* room, Box* boxes) : args(args), room(room), boxes(boxes)
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

    __device__ bool clustered() const { return kClusters && args.flags & kCluster; }
    __device__ Box& box() const { return boxes[turn & 1]; }
    __device__ unsigned starts() const { return piece == 0 && threadIdx.x == 0; }  // element 0 of the thread begins a row
    __device__ bool backward() const { return args.dx.step < 0; }
    __device__ bool repeats() const { return args.dy.step == 0; }  // one number for all dy of a row
    __device__ bool plain() const { return count == 32 * U && args.dy.step > 0; }
    __device__ int beside() const { return backward() ? -32 * 16 : 32 * 16; }  // bytes from a vector to the next of the lane

    // The first element of a row.
    __device__ char* begin(const Strided& operand, unsigned row) const
    {
        return operand.data + (operand.first + row * operand.stride[0]) * static_cast<i64>(sizeof(T));
    }

    __device__ void ask(unsigned row)
    {
        if (row >= args.strips) return;
        const char *x = begin(args.x, row) + from, *y = begin(args.dy, row) + from;
        const unsigned even = static_cast<unsigned>(__cvta_generic_to_shared(Vectors::across(room, 0))), odd = even ^ 64;
        if (plain()) {
            ask_plain(even, odd, x);
            ask_plain(even + U * 512, odd + U * 512, y);
        } else {
#pragma unroll 1
            for (int u = 0; u < U && u * 32 + lane < count; ++u) {
                const unsigned to = (u % 2 ? odd : even) + u * 512;
                fetch_vector(to, x + u * beside());
                if (!repeats()) fetch_vector(to + U * 512, y + u * beside());
            }
        }
        if constexpr (kBased<K>) first = *reinterpret_cast<const T*>(begin(args.x, row));
    }

    template <int M = 0>
    __device__ void ask_plain(unsigned even, unsigned odd, const char* from) const
    {
        if constexpr (M < U) {
            fetch_vector<M * 512>(M % 2 ? odd : even, from);
            ask_plain<M + 1>(even, odd, from);
        }
    }

    __device__ void read(Vector (&word)[U], uint4* from) const
    {
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].load(Vectors::along(from, u));
        flip(word);
    }

    __device__ void repeat(Vector (&word)[U]) const
    {
        const T all = *reinterpret_cast<const T*>(begin(args.dy, row));
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
            for (int v = 0; v < V; ++v) word[u].set(v, lane * U + u < count ? all : T());
    }

    __device__ void write(Vector (&word)[U]) const
    {
        uint4* out = room + 2 * 32 * U;
        char* dx = begin(args.dx, row) + from;
        flip(word);
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].store(Vectors::along(out, u));
        __syncwarp();
#pragma unroll
        for (int u = 0; u < U; ++u) word[u].load(Vectors::across(out, u));
        __syncwarp();
        if (plain()) {
#pragma unroll
            for (int u = 0; u < U; ++u) word[u].store(reinterpret_cast<T*>(dx + u * 512));
            return;
        }
#pragma unroll
        for (int u = 0; u < U; ++u)
            if (u * 32 + lane < count) word[u].store(reinterpret_cast<T*>(dx + u * beside()));
    }

    // Memory's order is scan order backwards.
    __device__ void flip(Vector (&word)[U]) const
    {
        if (!backward()) return;
        __syncwarp();  // lest all of this be predicated
#pragma unroll
        for (int u = 0; u < U; ++u) word[u] = Vectors::flipped(word[u]);
    }

    // Lane 0 gets the join of as many lanes as the block has warps, which holds for all if the others have nothing.
    template <typename S>
    static __device__ S joined(S s)
    {
#pragma unroll (kHolds<K> ? 3 : 1)
        for (int d = 1; d < kPieceThreads<T> / 32; d *= 2) s = K::join(s, from_above(s, d));
        return s;
    }

    // What lanes ahead of this one hold, and those behind it.
    __device__ Head heads_of_lanes(const Head& own) const
    {
        const Head all = heads_up_to<K>(own, lane);
        if (lane == 31) shared->heads[warp] = all;
        const Head next = from_below(all, 1);
        return lane == 0 ? K::empty() : next;
    }
    __device__ Tail tails_of_lanes(const Tail& own) const
    {
        const Tail all = tails_down_to<K>(own, 31 - lane);
        if (lane == 0) shared->tails[warp] = all;
        const Tail next = from_above(all, 1);
        return lane == 31 ? K::nothing() : next;
    }

    // What lanes are met by becomes what they are met by in the block; what enters that is in shared memory then.
    template <bool HEADS, bool TAILS>
    __device__ void meet(Head& head, Tail& tail)
    {
        __syncthreads();
        if (warp == 0) tell<HEADS, TAILS>();
        if (HEADS) head = K::join(from_lane(joined(lane < warp ? shared->heads[lane] : K::empty()), 0), head);
        if (TAILS) tail = K::join(tail, from_lane(joined(warp + 1 + lane < warps ? shared->tails[warp + 1 + lane] : K::nothing()), 0));
        if (warp == 0) hear<HEADS, TAILS>();
        __syncthreads();
    }

    // Tells other blocks what the warps of this one come to.
    template <bool HEADS, bool TAILS>
    __device__ void tell()
    {
        Head head = K::empty();
        Tail tail = K::nothing();
        if (HEADS) head = joined(lane < warps ? shared->heads[lane] : head);
        if (TAILS) tail = joined(lane < warps ? shared->tails[lane] : tail);
        if (clustered()) {
            if constexpr (kClusters) {
                if (HEADS) head = from_lane(head, 0);
                if (TAILS) tail = from_lane(tail, 0);
                if (HEADS && lane > piece && lane < pieces) box().tell(!HEADS, lane, piece, head);
                if (TAILS && lane < piece) box().tell(!HEADS, lane, piece, tail);
            }
        } else if (lane == 0) {
            const Told<K> told(args);
            const i64 own = (static_cast<i64>(row) * pieces + piece) * PACKETS;
            if (HEADS) Told<K>::tell(told.heads + own, head);
            if (TAILS) Told<K>::tell(told.tails + own, tail);
        }
    }

    // Lets in what the others come to: lane i hears piece i.
    template <bool HEADS, bool TAILS>
    __device__ void hear()
    {
        Head head = K::empty();
        Tail tail = K::nothing();
        const bool earlier = HEADS && lane < piece, later = TAILS && lane > piece && lane < pieces;
        if (clustered()) {
            if constexpr (kClusters) {
                box().wait(!HEADS, (HEADS ? piece : 0) + (TAILS ? pieces - 1 - piece : 0), turn >> 1);
                if (earlier) head = box().template hear<Head>(lane);
                if (later) tail = box().template hear<Tail>(lane);
            }
        } else if (earlier || later) {
            const Told<K> told(args);
            const Tail heard = Told<K>::template hear<Tail>((earlier ? told.heads : told.tails) + (static_cast<i64>(row) * pieces + lane) * PACKETS);
            if (earlier)
                memcpy(&head, &heard, sizeof head);
            else
                tail = heard;
        }
#pragma unroll 1
        for (int d = 1; d < pieces; d *= 2) {
            if (HEADS) head = K::join(head, from_above(head, d));
            if (TAILS) tail = K::join(tail, from_above(tail, d));
        }
        if (HEADS && lane == 0) shared->head[0] = head;
        if (TAILS && lane == 0) shared->tail[0] = tail;
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
        if constexpr (kBased<K>) cell.base = widen<A>(first);
        __syncwarp();
        ask(row + apart);
        Head head;
        Tail tail;
        if constexpr (kTogether<K>) {
            tail = cell.tail(x, y, starts());
            head = heads_of_lanes(cell.product);
            tail = tails_of_lanes(tail);
        } else {
            head = heads_of_lanes(cell.head(x, starts()));
        }
        meet<true, !K::ORDERED>(head, tail);
        renew(xs), renew(ys);
        cell.enter(K::join(shared->head[0], head), x, y, starts());
        if constexpr (K::ORDERED) {
            tail = tails_of_lanes(cell.tail(x, y, starts()));
            meet<false, true>(head, tail);
        }
        renew(xs), renew(ys);
        cell.finish(K::join(tail, shared->tail[0]), x, y, starts(), [&](int u, const A(&dx)[V]) { ys[u] = Vectors::packed(dx); });
        write(ys);
        return lane * U < count ? cell.faults : 0;
    }
};

template <typename K, typename T>
__device__ void pieces(const ScanArgs& args)
{
    using First = TameKind<K, T>;
    using Own = Piece<First, T>;
    extern __shared__ __align__(128) uint4 rooms[];
    __shared__ RowShared<First> shared[2];  // of a row, and of the one before, which some warp may not be done with
    __shared__ unsigned found[2];           // the faults of both
    __shared__ typename Own::Box boxes[2];
    Own own(args, rooms + threadIdx.x / 32 * 32 * 3 * Own::U, boxes);
    own.ask(own.row);
    if (threadIdx.x < 2) found[threadIdx.x] = 0, boxes[threadIdx.x].open();
    __syncthreads();
    if constexpr (kClusters) meet_cluster();
    const auto tell = [&](unsigned& faults, unsigned row) {
        if (threadIdx.x != 0 || own.turn == 0 || faults == 0) return;
        atomicOr(&args.bad[row], static_cast<int>(faults));
        faults = 0;
    };
#pragma unroll 1
    for (; args.strips > own.row; own.row += own.apart, ++own.turn) {
        const int k = own.turn & 1;
        own.shared = &shared[k];
        const unsigned faults = __reduce_or_sync(0xffffffff, own.run());
        if (faults && own.lane == 0) atomicOr(&found[k], faults);
        tell(found[k ^ 1], own.row - own.apart);  // all warps are done with that row
    }
    __syncthreads();
    tell(found[own.turn + 1 & 1], own.row - own.apart);
    if constexpr (kClusters) meet_cluster();
}
