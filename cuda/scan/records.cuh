// The record pass of cummax and cummin: a launch that reads only x and stores a bit for each
// element that is a record, for the launch that reads dy.
//
// The best element so far, of a row or of each column of a panel, is in shared memory and raised by
// atomicMax. Most warps hold no better one: they have no record and skip the scan.
#pragma once

#include "scan/column/pipelined.cuh"
#include "scan/row/pipelined.cuh"

template <typename K, typename T>
__device__ void PipelinedPanel<K, T>::find_record_flags(int t, uint4* stage)
{
    Vector xs[R];
    read(stage, xs, rows_left - t * ROWS, static_cast<T>(K::pad(args)));
    const auto xv = [&](int v) { return Elements<A, T, W, R, true>{xs, v}; };
    const unsigned segment_heads = split == 0 && t == 0 && warp == 0;
    ThreadScan thread[W];
    PerColumn<Prefix> own;
#pragma unroll
    for (int v = 0; v < W; ++v) {
        thread[v].begin(args);
        own.at[v] = thread[v].prefix(xv(v), segment_heads);
    }
    bool wins = segment_heads;
#pragma unroll
    for (int v = 0; v < W; ++v) {
        wins = wins || thread[v].wins(best.at[v]);
        if (own.at[v].best > best.at[v].best) atomicMax(&shared.carry_prefix[lane].at[v].best, own.at[v].best);
    }
    shared.warp_prefixes[threadIdx.x] = own;
    __syncthreads();
    PerColumn<Prefix> before = best;
    best = shared.carry_prefix[lane];
    if (this->phase() == kUpsweepPrefix) return;
    Records found = {};
    if (__any_sync(~0u, wins)) {
        combine_preceding<1>(before);
#pragma unroll
        for (int v = 0; v < W; ++v) {
            thread[v].enter(before.at[v], xv(v), xv(v), segment_heads);
            found.at[v] = static_cast<Bits>(thread[v].records);
        }
    }
    reinterpret_cast<Records*>(this->records_of(
        (static_cast<i64>(segment) * args.splits + split) * args.tiles_per_split + t))[threadIdx.x] = found;
}

template <typename K, typename T>
__device__ void PipelinedRow<K, T>::find_record_flags(int t, uint4* stage)
{
    Vector xs[U];
    read(stage, xs, t, static_cast<T>(K::pad(args)));
    const Elements<A, T, V, U> x{xs};
    ThreadScan thread;
    thread.begin(args);
    const Prefix own = thread.prefix(x, segment_heads(t));
    const bool some = __any_sync(~0u, segment_heads(t) || thread.wins(prefix));  // any element of the warp
    Prefix all = K::Prefix::identity(), before = prefix;
    if (some) {
        all = inclusive_prefix<K>(own, lane);
        if (lane == 31) atomicMax(&shared.carry_prefix[0].best, all.best);
    }
    if (lane == 31) shared.warp_prefixes[warp] = all;
    __syncthreads();
    thread.records = 0;
    if (some) {
#pragma unroll 1
        for (int w = 0; w < warp; ++w) before = K::combine(before, shared.warp_prefixes[w]);
        all = shuffle_up(all, 1);
        thread.enter(lane > 0 ? K::combine(before, all) : before, x, x, segment_heads(t));
    }
    prefix = shared.carry_prefix[0];
    *reinterpret_cast<Bits*>(found + t * (TILE_ELEMENTS / 8)) = static_cast<Bits>(thread.records);
    // For filter_records: the prefix through tile t, not before it.
    if (args.splits > 1 && threadIdx.x == 0) this->split_state().prefix_before(t - this->first_tile(), 0) = prefix;
}

// Clears the record flags of elements that do not win over the splits before this one, `preceding`.
// Only the first tile that has a record is examined, element by element from global memory, once
// per split: tiles before it lose all flags, and later tiles keep theirs.
template <typename K, typename T>
__device__ void PipelinedRow<K, T>::filter_records(const Prefix& preceding)
{
    __shared__ int first_winning_tile;
    const int tile_count = this->split_tiles();
    ThreadScan thread;
    thread.begin(args);
    if (threadIdx.x == 0) first_winning_tile = tile_count;
    __syncthreads();
    for (int t = threadIdx.x; t < tile_count; t += kRowPipelinedThreads) {
        if (thread.beats(this->split_state().prefix_before(t, 0), preceding)) {
            atomicMin(&first_winning_tile, t);
            break;
        }
    }
    __syncthreads();
    char* records = this->records_of(static_cast<i64>(segment) * tiles() + this->first_tile());
#pragma unroll 1
    for (int i = threadIdx.x; i < first_winning_tile * (TILE_ELEMENTS / 128); i += kRowPipelinedThreads)
        reinterpret_cast<uint4*>(records)[i] = uint4{0, 0, 0, 0};
    if (first_winning_tile == tile_count) return;
    Bits& flags = reinterpret_cast<Bits*>(records + first_winning_tile * (TILE_ELEMENTS / 8))[threadIdx.x];
    const int first = (this->first_tile() + first_winning_tile) * TILE + static_cast<int>(threadIdx.x) * I -
                      misalignment_at(0);
    const T* from = reinterpret_cast<const T*>(args.inputs[kSaved].data) +
                    Offsets::of_single_dim(args, 0, segment).inputs[kSaved];
    unsigned wins = 0;
#pragma unroll 1
    for (int i = max(-first, 0); i < min(static_cast<int>(args.n) - first, I); ++i)
        wins |= static_cast<unsigned>(thread.beats(
                    thread.prefix_of(widen<A>(from[(back() ? -1 : 1) * static_cast<i64>(first + i)])), preceding))
                << i;
    flags &= static_cast<Bits>(wins);
}
