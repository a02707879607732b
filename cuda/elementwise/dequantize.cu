// Dequantization and fake quantization, forward and backward. SIDE: scale and zero_point are
// constant along inner (a token, a group, a block), or have a number for each column (a channel).
#include "common/divisor.cuh"
#include "elementwise/map_reduce.cuh"

// y = (q - zero_point) * scale.
// Inputs: q, scale, zero_point?   Outputs: y
template <typename A, typename Tuning, Kind SIDE>
struct Dequantize : Tuning {
    using Tuning::IN, Tuning::OUT;
    static constexpr int FULL = 1, FIRST_SUM = 1;
    static constexpr int MAP_BLOCKS = 10, COLUMNS_BLOCKS = 3;
    using Args = MapReduceArgs<IN, OUT>;
    static constexpr __device__ Kind input(int i) { return i == 0 ? Kind::Quantized : SIDE; }

    __device__ explicit Dequantize(const Args&) {}

    struct Common {
        A scale, zero_point;
    };
    __device__ Common common(const A (&side)[IN]) const { return {side[1], side[2]}; }
    __device__ A shared(const A (&)[IN], const Common&) const { return A(0); }

    __device__ A output(int, const A (&in)[IN], const Common& common, A) const
    {
        return (in[0] - common.zero_point) * common.scale;
    }
};

// dx = dy * scale,  dscale = sum dy * (q - zero_point),  dzero_point = -scale * sum dy.
// Inputs: dy, scale, q?, zero_point?   Outputs: dx?, dscale?, dzero_point?
template <typename A, typename Tuning, Kind SIDE>
struct DequantizeBackward : Tuning {
    using Tuning::IN, Tuning::OUT;
    static constexpr int FULL = 1, FIRST_SUM = 1;
    static constexpr int MAP_BLOCKS = 16, ROWS_BLOCKS = 6, COLUMNS_BLOCKS = 3;
    using Args = MapReduceArgs<IN, OUT>;
    static constexpr __device__ Kind input(int i)
    {
        return i == 0 ? Kind::Own : i == 2 ? Kind::Quantized : SIDE;
    }

    __device__ explicit DequantizeBackward(const Args&) {}

    struct Common {
        A scale, zero_point;
    };
    __device__ Common common(const A (&side)[IN]) const { return {side[1], side[3]}; }
    __device__ A shared(const A (&)[IN], const Common&) const { return A(0); }

    __device__ A output(int o, const A (&in)[IN], const Common& common, A) const
    {
        const A dy = in[0], q = in[2];
        if (o == 0) return dy * common.scale;
        if (o == 1) return dy * (q - common.zero_point);
        return SIDE == Kind::Column ? -common.scale * dy : -dy;
    }

    // Of a row: the sum, or the sum of a chunk, of output o.
    __device__ A total(int o, const Common& common, A sum) const { return o == 2 ? common.scale * sum : sum; }
};

// The levels of fake quantization: the bounds, and a zero point that is rounded and clamped if it
// is floating, the operand at index ZERO_POINT. reciprocal: x times 1 / scale takes the place of
// x / scale.
template <typename A, int ZERO_POINT>
struct Levels {
    A least, most;
    bool reciprocal, floating;

    template <typename Args>
    __device__ explicit Levels(const Args& args)
        : least(keep_here(static_cast<A>(args.space.scalar[0]))),
            most(keep_here(static_cast<A>(args.space.scalar[1]))), reciprocal(args.space.scalar[3] != 0),
                floating(args.in[ZERO_POINT].data != nullptr && args.in[ZERO_POINT].dtype <= kLastFloat)
    {
    }

    // A NaN is clamped to itself.
    __device__ A clamp(A t) const { return t < least ? least : t > most ? most : t; }

    // clamp() in two instructions, where the compiler makes branches of it: they would diverge.
    __device__ A clamp_at_once(A t) const
    {
        if constexpr (sizeof(A) == 4) {
            asm("max.NaN.f32 %0, %0, %1;" : "+f"(t) : "f"(least));
            asm("min.NaN.f32 %0, %0, %1;" : "+f"(t) : "f"(most));
            return t;
        } else {
            return clamp(t);
        }
    }

    __device__ Divisor<A> divisor(A scale) const
    {
        return reciprocal ? Divisor<A>::reciprocal_of(scale) : Divisor<A>::of(scale);
    }

    __device__ A zero_point(A given) const { return floating ? clamp(rint(given)) : given; }

    struct Common {
        A scale, zero_point;
        Divisor<A> divisor;
    };
};

// t = round_half_even(x / scale) + zero_point,  y = (clamp(t, quant_min, quant_max) - zero_point) *
// scale. Every level times a scale of 0 is 0, so that a divisor of 1, which keeps levels finite,
// stands in for that scale.
// Inputs: x, scale, zero_point?   Outputs: y   Scalars: quant_min, quant_max, -, whether
// reciprocal
template <typename A, typename Tuning, Kind SIDE>
struct FakeQuantize : Tuning, Levels<A, 2> {
    using Tuning::IN, Tuning::OUT;
    static constexpr int FULL = 1, FIRST_SUM = 1;
    static constexpr int MAP_BLOCKS = 8, COLUMNS_BLOCKS = 3;
    using Args = MapReduceArgs<IN, OUT>;
    using Common = typename Levels<A, 2>::Common;
    using Levels<A, 2>::Levels;
    static constexpr __device__ Kind input(int i) { return i == 0 ? Kind::Own : SIDE; }

    __device__ Common common(const A (&side)[IN]) const
    {
        return {side[1], this->zero_point(side[2]), this->divisor(side[1] == A(0) ? A(1) : side[1])};
    }
    __device__ A shared(const A (&)[IN], const Common&) const { return A(0); }

    __device__ A output(int, const A (&in)[IN], const Common& common, A) const
    {
        const A t = rint(common.divisor.divide(in[0])) + common.zero_point;
        return (this->clamp_at_once(t) - common.zero_point) * common.scale;
    }
};

// t = round_half_even(x / scale) + zero_point, q = clamp(t, quant_min, quant_max); an element is
// inside if t == q.
//   dx           dy                                             inside, else 0
//   dscale       sum of dy * ((q - zero_point) - x / scale)     inside, else of
//                                                              dy * (q - zero_point)
//   dzero_point  sum of 0                                       inside, else of -scale * dy
// A floating zero_point is rounded and clamped first. A NaN in x is outside and is not clamped. A
// scale of 0 is the limit of small scales: x / 0 is infinite with the sign of x, as a divisor of +0
// gives, and 0 / 0 is 0.
// Inputs: dy, x, scale, zero_point?   Outputs: dx?, dscale?, dzero_point?   Scalars: quant_min,
// quant_max, -, whether reciprocal
template <typename A, typename Tuning, Kind SIDE>
struct FakeQuantizeBackward : Tuning, Levels<A, 3> {
    using Tuning::IN, Tuning::OUT;
    static constexpr int FULL = 1, FIRST_SUM = 1;
    static constexpr int MAP_BLOCKS = 8, ROWS_BLOCKS = 6, COLUMNS_BLOCKS = 3;
    using Args = MapReduceArgs<IN, OUT>;
    using Common = typename Levels<A, 3>::Common;
    using Levels<A, 3>::Levels;
    static constexpr __device__ Kind input(int i) { return i < 2 ? Kind::Own : SIDE; }

    __device__ Common common(const A (&side)[IN]) const
    {
        return {side[2], this->zero_point(side[3]), this->divisor(side[2] == A(0) ? A(0) : side[2])};
    }

    __device__ A shared(const A (&in)[IN], const Common& common) const
    {
        const A ratio = common.divisor.divide(in[1]);
        return in[1] == A(0) && common.scale == A(0) ? A(0) : ratio;
    }

    __device__ A output(int o, const A (&in)[IN], const Common& common, A ratio) const
    {
        const A dy = in[0], rounded = rint(ratio), t = rounded + common.zero_point;
        const bool inside = this->least <= t && t <= this->most;
        if (o == 0) return inside ? dy : A(0);
        if (o == 1) return dy * (inside ? rounded - ratio : this->clamp_at_once(t) - common.zero_point);
        return inside ? A(0) : -common.scale * dy;
    }
};

template <typename A>
using DequantizePerToken = Dequantize<A, DequantizePerTokenTuning, Kind::Side>;
template <typename A>
using DequantizePerChannel = Dequantize<A, DequantizePerChannelTuning, Kind::Column>;
template <typename A>
using DequantizePerTokenBackward = DequantizeBackward<A, DequantizePerTokenBackwardTuning, Kind::Side>;
template <typename A>
using DequantizePerChannelBackward = DequantizeBackward<A, DequantizePerChannelBackwardTuning, Kind::Column>;
template <typename A>
using FakeQuantizePerToken = FakeQuantize<A, FakeQuantizePerTokenTuning, Kind::Side>;
template <typename A>
using FakeQuantizePerChannel = FakeQuantize<A, FakeQuantizePerChannelTuning, Kind::Column>;
template <typename A>
using FakeQuantizePerTokenBackward = FakeQuantizeBackward<A, FakeQuantizePerTokenBackwardTuning, Kind::Side>;
template <typename A>
using FakeQuantizePerChannelBackward = FakeQuantizeBackward<A, FakeQuantizePerChannelBackwardTuning, Kind::Column>;

FOR_EACH_FLOAT(EXPORT_MAP, dequantize_per_token, DequantizePerToken)
FOR_EACH_FLOAT(EXPORT_MAP, fake_quantize_per_token, FakeQuantizePerToken)
FOR_EACH_FLOAT(EXPORT_MAP_ROWS, dequantize_per_token_backward, DequantizePerTokenBackward)
FOR_EACH_FLOAT(EXPORT_MAP_ROWS, fake_quantize_per_token_backward, FakeQuantizePerTokenBackward)
FOR_EACH_FLOAT(EXPORT_COLUMNS, dequantize_per_channel, DequantizePerChannel)
FOR_EACH_FLOAT(EXPORT_COLUMNS, fake_quantize_per_channel, FakeQuantizePerChannel)
FOR_EACH_FLOAT(EXPORT_COLUMNS, dequantize_per_channel_backward, DequantizePerChannelBackward)
FOR_EACH_FLOAT(EXPORT_COLUMNS, fake_quantize_per_channel_backward, FakeQuantizePerChannelBackward)
