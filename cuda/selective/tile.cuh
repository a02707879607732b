// Tiles of positions that the channels of a CTA share: B and C of some states, and the positions at
// which sequences begin.
#pragma once

#include "selective/numbers.cuh"

// A lane owns POSITIONS adjacent positions of a tile, and the tile has one for each bit of a warp.
template <typename A>
struct TileShape {
    static constexpr int POSITIONS = 8,  // of a lane
        TILE = 32 * POSITIONS,
        STATES = 2 * kWarps,  // whose B and C are in shared memory at once
        VECTOR = 16 / sizeof(A),           // numbers of an access to shared memory
        PITCH = TILE + VECTOR;             // numbers from a state to the next
    static_assert(kChunkLength == TILE);

    // The place of position k of lane `lane`: a lane reads vectors, and a warp adjacent ones.
    static __device__ int place(int lane, int k) { return (k / VECTOR * 32 + lane) * VECTOR + k % VECTOR; }
};

// Loads B or C of `states` states from `first` on, at the positions of a tile; 0 where there is
// none.
template <typename A, typename T>
__device__ void load_shared(
    const SelectiveOperand& operand, const T* from, i64 first, int states, i64 position, i64 length, A* to)
{
    using Shape = TileShape<A>;
    const int count = static_cast<int>(min(length - position, i64(Shape::TILE)));
    from += first * operand.state + position * operand.position;
    if (operand.position == 1) {
        constexpr int P = Shape::POSITIONS;
        for (int i = threadIdx.x; i < states * 32; i += blockDim.x) {
            const int n = i / 32, lane = i % 32;
            A x[P];
            load_positions<P>(from + n * operand.state + lane * P, 1, count - lane * P, x);
#pragma unroll
            for (int k = 0; k < P; ++k) to[n * Shape::PITCH + Shape::place(lane, k)] = x[k];
        }
        return;
    }
    for (int i = threadIdx.x; i < states * Shape::TILE; i += blockDim.x) {  // states are adjacent, as in Mamba
        const int t = i / states, n = i - t * states;
        to[n * Shape::PITCH + Shape::place(t / Shape::POSITIONS, t % Shape::POSITIONS)] =
            t < count ? widen<A>(from[n * operand.state + t * operand.position]) : A(0);
    }
}

// The numbers of this lane at a state.
template <typename A>
__device__ void read_shared(const A* state, A (&x)[TileShape<A>::POSITIONS])
{
    using Shape = TileShape<A>;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < Shape::POSITIONS; k += Shape::VECTOR) {
        const Pack<A, Shape::VECTOR> pack = load_wide<Shape::VECTOR>(state + Shape::place(lane, k));
#pragma unroll
        for (int v = 0; v < Shape::VECTOR; ++v) x[k + v] = pack.at[v];
    }
}

// Marks the positions of a tile, and the one after it, at which sequences begin, as bits. A barrier
// of the CTA comes before and after.
template <int TILE>
__device__ void find_heads(const SelectiveArgs& args, i64 position, unsigned (&heads)[TILE / 32 + 1])
{
    for (int i = threadIdx.x; i <= TILE / 32; i += blockDim.x) heads[i] = 0;
    __syncthreads();
    for (i64 k = bounds_below(args, position) + threadIdx.x; k < args.bound_count; k += blockDim.x) {
        const i64 i = bound_at(args, k) - position;
        if (i < 0 || i > TILE) break;
        atomicOr(&heads[i / 32], 1u << i % 32);
    }
    __syncthreads();
}
