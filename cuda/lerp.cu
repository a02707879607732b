// y = a + w (b - a):  da = (1 - w) dy,  db = w dy,  dweight = dy (b - a).
#include "mapreduce.cuh"

// in: dy, weight?   out: da?, db?   scalar: w, 1 - w, used when weight is absent
template <typename A>
struct LerpBackward {
    static constexpr int IN = 2, OUT = 2, FULL = 2, FIRST_SUM = 0, MAP_UNROLL = 1, ROWS_UNROLL = 2, COLUMNS_UNROLL = 2;
    using Args = MapReduceArgs<IN, OUT>;
    static constexpr __device__ Kind input(int) { return Kind::Own; }

    bool given;
    A w, rest;

    __device__ explicit LerpBackward(const Args& args)
        : given(args.in[1].data != nullptr), w(static_cast<A>(args.walk.scalar[0])), rest(static_cast<A>(args.walk.scalar[1]))
    {
    }

    __device__ A shared(const A (&)[IN]) const { return A(0); }

    __device__ A output(int o, const A (&in)[IN], A) const
    {
        if (o == 0) return (given ? A(1) - in[1] : rest) * in[0];
        return (given ? in[1] : w) * in[0];
    }
};

// The same with dweight, which alone needs a and b.
// in: dy, weight, a, b   out: da?, db?, dweight
template <typename A>
struct LerpWeightBackward {
    static constexpr int IN = 4, OUT = 3, FULL = 3, FIRST_SUM = 0, MAP_UNROLL = 1, ROWS_UNROLL = 2, COLUMNS_UNROLL = 2;
    using Args = MapReduceArgs<IN, OUT>;
    static constexpr __device__ Kind input(int) { return Kind::Own; }

    __device__ explicit LerpWeightBackward(const Args&) {}

    __device__ A shared(const A (&)[IN]) const { return A(0); }

    __device__ A output(int o, const A (&in)[IN], A) const
    {
        if (o == 0) return (A(1) - in[1]) * in[0];
        if (o == 1) return in[1] * in[0];
        return in[0] * (in[3] - in[2]);
    }
};

FOR_EACH_FLOAT(EXPORT_MAP_ROWS_COLUMNS, lerp_backward, LerpBackward)
FOR_EACH_FLOAT(EXPORT_MAP_ROWS_COLUMNS, lerp_weight_backward, LerpWeightBackward)
