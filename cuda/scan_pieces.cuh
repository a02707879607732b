// Rows that some blocks hold together, a piece each, in registers, so that memory is read once. All of them are on the device at once: a
// block tells the others what its piece comes to, and hears what theirs do, while its next piece comes to shared memory.
//
// For kinds that are tried first. What is against a row is told by each of its blocks.
#pragma once

#include "scan_rows.cuh"
#include "scan_team.cuh"

// The pieces of a block, which are at the same place of every so many rows.
template <typename K, typename T>
struct Piece {
    using Head = typename K::Head;
    using Tail = typename K::Tail;
    static constexpr int U = kVectors<K, T>, I = U * 16 / sizeof(T), PACKETS = Told<K>::template PACKETS<Tail>;
    static_assert(sizeof(Head) <= sizeof(Tail) && Told<K>::template PACKETS<Head> == PACKETS);

    const ScanArgs& args;
    uint4* room;  // of the warp
    int pieces = static_cast<int>(args.parts), lane = threadIdx.x % 32;
    unsigned row = blockIdx.x / static_cast<unsigned>(pieces), apart = gridDim.x / static_cast<unsigned>(pieces);
    int piece = static_cast<int>(blockIdx.x - row * pieces);
    mutable Head ahead;  // what the warps of the block hold ahead of this one, and behind it
    mutable Tail behind;
    mutable T first;  // the first x of the next row, as it comes: who widens it waits for it

    __device__ Piece(const ScanArgs& args, uint4* room) : args(args), room(room) {}

    // The elements of the warp, and where rows are.
    __device__ Span span() const
    {
        const int first = (piece * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x) / 32 * 32) * I;
        return {0, first, 0, max(min(static_cast<int>(args.n) - first, 32 * I), 0), false};
    }

    __device__ Places places(unsigned row) const { return Places::at_stride(args, 0, row); }

    // Asks for those of a row.
    __device__ void ask(unsigned row) const
    {
        if (row >= args.strips) return;
        const Places place = places(row);
        const Span at = span();
        StagedLine<T, U>(args, args.x, at, place.x).ask(room);
        StagedLine<T, U>(args, args.dy, at, place.dy).ask(room + 32 * U);
        if constexpr (kBased<K>) first = reinterpret_cast<const T*>(args.x.data)[place.x];
    }
    __device__ void ask_next() const { ask(row + apart); }

    // The first lane gets the join of the first `count`, from left to right.
    template <bool HEADS, bool TAILS>
    static __device__ void join(Head& head, Tail& tail, int count)
    {
#pragma unroll 1
        for (int d = 1; d < count; d *= 2) {
            if constexpr (HEADS) head = K::join(head, from_above(head, d));
            if constexpr (TAILS) tail = K::join(tail, from_above(tail, d));
        }
    }

    // Tells other blocks what the warps of this one come to, finds what they do to each other, and lets in what the others come to.
    template <bool HEADS, bool TAILS, typename Scan>
    __device__ void meet(const Scan& scan) const
    {
        const int warp = static_cast<int>(threadIdx.x) / 32;
        tell<HEADS, TAILS>(*scan.shared);
        if constexpr (HEADS) ahead = scan.heads_of_warps(warp);
        if constexpr (TAILS) behind = scan.tails_of_warps(warp);
        if (threadIdx.x < 32) hear<HEADS, TAILS>(*scan.shared);
        __syncthreads();
    }

    template <bool HEADS, bool TAILS>
    __device__ void tell(RowShared<K>& shared) const
    {
        if (threadIdx.x >= 32) return;
        const Told<K> told(args);
        const i64 own = static_cast<i64>(row) * pieces + piece;
        const int warps = static_cast<int>(blockDim.x) / 32;
        Head head = K::empty();
        Tail tail = K::nothing();
        if (HEADS && lane < warps) head = shared.heads[lane];
        if (TAILS && lane < warps) tail = shared.tails[lane];
        join<HEADS, TAILS>(head, tail, warps);
        if (HEADS && lane == 0) Told<K>::tell(told.heads + own * PACKETS, head);
        if (TAILS && lane == 0) Told<K>::tell(told.tails + own * PACKETS, tail);
    }

    // Lane i hears piece i.
    template <bool HEADS, bool TAILS>
    __device__ void hear(RowShared<K>& shared) const
    {
        const Told<K> told(args);
        const i64 first = static_cast<i64>(row) * pieces;
        Head head = K::empty();
        Tail tail = K::nothing();
        const bool earlier = HEADS && lane < piece, later = TAILS && lane > piece && lane < pieces;
        if (earlier || later) {
            const Tail heard = Told<K>::template hear<Tail>((earlier ? told.heads : told.tails) + (first + lane) * PACKETS);
            if (earlier)
                memcpy(&head, &heard, sizeof head);
            else
                tail = heard;
        }
        join<HEADS, TAILS>(head, tail, pieces);
        if (HEADS && lane == 0) shared.head[0] = head;
        if (TAILS && lane == 0) shared.tail[0] = tail;
    }
};

template <typename K, typename T>
__device__ void pieces(const ScanArgs& args)
{
    using First = TameKind<K, T>;
    using Own = Piece<First, T>;
    using Scan = Inner<First, T, false, false, true, false, Own>;
    extern __shared__ __align__(128) uint4 rooms[];
    __shared__ RowShared<First> shared[2];  // of a row, and of the one before, which some warp may not be done with
    __shared__ unsigned found[2];           // the faults of both
    Own own(args, rooms + threadIdx.x / 32 * 32 * 3 * Own::U);
    own.ask(own.row);
    if (threadIdx.x < 2) found[threadIdx.x] = 0;
    __syncthreads();
    const auto tell = [&](unsigned& faults, unsigned row) {
        if (threadIdx.x == 0 && faults) atomicOr(&args.bad[row], static_cast<int>(faults)), faults = 0;
    };
    int k = 0;
#pragma unroll 1
    for (; args.strips > own.row; own.row += own.apart, k ^= 1) {
        const Scan scan{args, &shared[k], 0, static_cast<int>(blockDim.x) / 32, nullptr, &own};
        Passed<First> passed;
        const unsigned faults = __reduce_or_sync(0xffffffff, scan.run(passed, own.span(), own.places(own.row), own.room, 0));
        if (faults && own.lane == 0) atomicOr(&found[k], faults);
        tell(found[k ^ 1], own.row - own.apart);  // all warps are done with that row
    }
    __syncthreads();
    tell(found[k ^ 1], own.row - own.apart);
}
