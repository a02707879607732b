// The launch that reads x alone, of kinds with records: it leaves a bit for each element, for the launch that reads dy.
//
// The best of a strip so far is in shared memory, raised by the few warps that hold a better element; the others find no record.
#pragma once

#include "scan/column/pipelined.cuh"
#include "scan/row/pipelined.cuh"

template <typename K, typename T>
__device__ void Strip<K, T>::find_records(int t, uint4* stage)
{
    Vector xs[R];
    read(stage, xs, rest - t * ROWS, static_cast<T>(K::pad(args)));
    const auto xv = [&](int v) { return Elements<A, T, W, R, true>{xs, v}; };
    const unsigned starts = part == 0 && t == 0 && warp == 0;
    Cell cell[W];
    Own<Head> own;
#pragma unroll
    for (int v = 0; v < W; ++v) {
        cell[v].begin(args);
        own.at[v] = cell[v].head(xv(v), starts);
    }
    bool wins = starts;
#pragma unroll
    for (int v = 0; v < W; ++v) {
        wins = wins || cell[v].wins(best.at[v]);
        if (own.at[v].best > best.at[v].best) atomicMax(&shared.head[lane].at[v].best, own.at[v].best);
    }
    shared.heads[threadIdx.x] = own;
    __syncthreads();
    Own<Head> before = best;
    best = shared.head[lane];
    if (this->phase() == kHeads) return;
    Records found = {};
    if (__any_sync(~0u, wins)) {
        join_ahead<1>(before);
#pragma unroll
        for (int v = 0; v < W; ++v) {
            cell[v].enter(before.at[v], xv(v), xv(v), starts);
            found.at[v] = static_cast<Bits>(cell[v].records);
        }
    }
    reinterpret_cast<Records*>(this->records_of((static_cast<i64>(strip) * args.parts + part) * args.tiles + t))[threadIdx.x] = found;
}

template <typename K, typename T>
__device__ void Long<K, T>::find_records(int t, uint4* stage)
{
    Vector xs[U];
    read(stage, xs, t, static_cast<T>(K::pad(args)));
    const Elements<A, T, V, U> x{xs};
    Cell cell;
    cell.begin(args);
    const Head own = cell.head(x, starts(t));
    const bool some = __any_sync(~0u, starts(t) || cell.wins(head));  // element of the warp
    Head all = K::empty(), before = head;
    if (some) {
        all = heads_up_to<K>(own, lane);
        if (lane == 31) atomicMax(&shared.head[0].best, all.best);
    }
    if (lane == 31) shared.heads[warp] = all;
    __syncthreads();
    cell.records = 0;
    if (some) {
#pragma unroll 1
        for (int w = 0; w < warp; ++w) before = K::join(before, shared.heads[w]);
        all = from_below(all, 1);
        cell.enter(lane > 0 ? K::join(before, all) : before, x, x, starts(t));
    }
    head = shared.head[0];
    *reinterpret_cast<Bits*>(found + t * (BITS / 8)) = static_cast<Bits>(cell.records);
    if (args.parts > 1 && threadIdx.x == 0) this->walk().head_before(t - this->first(), 0) = head;
}

// Of the records of a part, those stay that win over all parts ahead. Tiles before the first that holds one have none then.
template <typename K, typename T>
__device__ void Long<K, T>::settle(const Head& ahead)
{
    __shared__ int least;
    const int all = this->mine();
    Cell cell;
    cell.begin(args);
    if (threadIdx.x == 0) least = all;
    __syncthreads();
    for (int t = threadIdx.x; t < all; t += kLongThreads) {
        if (cell.beats(this->walk().head_before(t, 0), ahead)) {
            atomicMin(&least, t);
            break;
        }
    }
    __syncthreads();
    char* records = this->records_of(static_cast<i64>(strip) * tiles() + this->first());
#pragma unroll 1
    for (int i = threadIdx.x; i < least * (BITS / 128); i += kLongThreads) reinterpret_cast<uint4*>(records)[i] = uint4{0, 0, 0, 0};
    if (least == all) return;
    Bits& own = reinterpret_cast<Bits*>(records + least * (BITS / 8))[threadIdx.x];
    const int first = (this->first() + least) * TILE + static_cast<int>(threadIdx.x) * I - ahead_of(0);
    const T* from = reinterpret_cast<const T*>(args.x.data) + Places::at_stride(args, 0, strip).x;
    unsigned wins = 0;
#pragma unroll 1
    for (int i = max(-first, 0); i < min(static_cast<int>(args.n) - first, I); ++i)
        wins |= static_cast<unsigned>(cell.beats(cell.head_of(widen<A>(from[(back() ? -1 : 1) * static_cast<i64>(first + i)])), ahead)) << i;
    own &= static_cast<Bits>(wins);
}
