// y = a + w (b - a):  da = (1 - w) dy,  db = w dy,  dweight = dy (b - a).
#include "mapreduce.cuh"

// in: dy, weight?, a?, b?   out: da?, db?, dweight?   scalar: w, 1 - w, used when weight is absent
template <typename A>
struct LerpBackward {
    static constexpr int IN = 4, OUT = 3, FIRST_SUM = 0, UNROLL = LU;
    using Args = MapReduceArgs<IN, OUT>;
    static constexpr __device__ Kind input(int) { return Kind::Own; }

    bool given;
    A w, rest;

    __device__ explicit LerpBackward(const Args& args)
        : given(args.in[1].data != nullptr), w(static_cast<A>(args.walk.scalar[0])), rest(static_cast<A>(args.walk.scalar[1]))
    {
    }

    __device__ void operator()(const A (&in)[IN], A (&out)[OUT]) const
    {
        const A dy = in[0];
        out[0] = (given ? A(1) - in[1] : rest) * dy;
        out[1] = (given ? in[1] : w) * dy;
        out[2] = dy * (in[3] - in[2]);
    }
};

FOR_EACH_FLOAT(EXPORT_MAP_ROWS_COLUMNS, lerp_backward, LerpBackward)
