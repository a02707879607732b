// Sums of what the CTAs of a gradient left in the workspace, in a fixed order.
#pragma once

#include "selective/numbers.cuh"

// The sum of arrays of numbers, in order. A thread has a number of the result.
template <typename S, typename A>
__device__ void sum_arrays(const SumArgs& args)
{
    const i64 size = args.extent[0] * args.extent[1] * args.extent[2] * args.extent[3],
              i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= size) return;
    const A* from = reinterpret_cast<const A*>(args.workspace) + args.first + i;
    CompensatedSum<A> total;
#pragma unroll 4
    for (i64 k = 0; k < args.count; ++k) total.add(from[k * size]);
    const i64 position = i % args.extent[3], above = i / args.extent[3], state = above % args.extent[2],
              rest = above / args.extent[2], channel = rest % args.extent[1], batch = rest / args.extent[1];
    reinterpret_cast<S*>(args.to.data)[batch * args.to.batch + channel * args.to.channel + state * args.to.state +
                                       position * args.to.position] = static_cast<S>(total.sum);
}
