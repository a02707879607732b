// How the states of each kind are stored as carries (state/carry.cuh). The carry of a scan has one
// form in all kinds and on all devices. The carry of a gradient, a suffix, is stored as it is.
#pragma once

#include "scan/kinds/packed.cuh"
#include "scan/state/carry.cuh"

// Of packed sequences, the state of the sequence that is cut. No head lies in the chunks between.
template <typename S, bool IS_SUFFIX>
struct CarryForm<Closable<S, IS_SUFFIX>> {
    static __device__ Closable<S, IS_SUFFIX> read(const CarryNumbers& from, const CarriedRow& row)
    {
        return {CarryForm<S>::read(from, row), 0};
    }
    static __device__ void write(const Closable<S, IS_SUFFIX>& all, const CarryNumbers& to, const CarriedRow& row)
    {
        CarryForm<S>::write(all.state, to, row);
    }
};

template <>
struct CarryForm<SumSuffix<double>> : SameForm<SumSuffix<double>> {};
template <typename A>
struct CarryForm<ProductSuffix<A>> : SameForm<ProductSuffix<A>> {};

// A sum, or a maximum and a sum, of the accumulator type, and whether the sum is open.
template <typename A>
struct CarryForm<SegmentedSumSuffix<A>> {
    static __device__ SegmentedSumSuffix<A> read(const CarryNumbers& from, const CarriedRow&)
    {
        return {static_cast<A>(from[0]), from[1] != 0.0};
    }
    static __device__ void write(const SegmentedSumSuffix<A>& suffix, const CarryNumbers& to, const CarriedRow&)
    {
        to[0] = suffix.sum, to[1] = suffix.open;
    }
};

template <typename A>
struct CarryForm<LogcumsumexpSuffix<A>> {
    static __device__ LogcumsumexpSuffix<A> read(const CarryNumbers& from, const CarriedRow&)
    {
        return {static_cast<A>(from[0]), static_cast<A>(from[1])};
    }
    static __device__ void write(const LogcumsumexpSuffix<A>& suffix, const CarryNumbers& to, const CarriedRow&)
    {
        to[0] = suffix.m, to[1] = suffix.z;
    }
};

// The product m 2^e that is stored, with 1 <= |m| < 2; or m if it is 0, infinite or NaN.
__device__ inline WideProduct<double> stored_product(const CarryNumbers& from)
{
    constexpr double most = WideProduct<double>::kMost;
    WideProduct<double> p = WideProduct<double>::of(from[0]);
    if (p.is_regular()) p.e = static_cast<int>(fmin(fmax(p.e + from[1], -most), most));
    return p;
}

template <typename A>
struct CarryForm<WideProduct<A>> {
    static __device__ WideProduct<A> read(const CarryNumbers& from, const CarriedRow&)
    {
        const WideProduct<double> p = stored_product(from);
        WideProduct<A> all = {static_cast<A>(p.m), 0.0f, p.e};
        if (!p.is_regular()) return all;
        all.rest = static_cast<float>(p.m - all.m);
        if (fabs(all.m) >= A(2)) all.m *= A(0.5), all.rest *= 0.5f, ++all.e;  // it was rounded up
        return all;
    }
    static __device__ void write(const WideProduct<A>& p, const CarryNumbers& to, const CarriedRow&)
    {
        to[0] = p.is_regular() ? static_cast<double>(p.m) + p.rest : p.m;
        to[1] = p.is_regular() ? p.e : 0;
    }
};

// The prefix of a gradient is read from the carry of the scan.
template <typename A>
struct CarryForm<Product<A>> {
    static __device__ Product<A> read(const CarryNumbers& from, const CarriedRow&)
    {
        const WideProduct<double> p = stored_product(from);
        const Product<double> wide = Product<double>::of(p.m, p.e);
        if constexpr (sizeof(A) == 8) {
            return wide;
        } else {  // a product that is not 0 stays so
            const double v = wide.value();
            return {v == 0.0 && p.m != 0.0 ? copysign(0x1p-1074, p.m) : v};
        }
    }
};

// The sum of exponentials e^m (1 + t).
template <typename A>
struct CarryForm<LogSum<A>> {
    static __device__ LogSum<A> read(const CarryNumbers& from, const CarriedRow&)
    {
        return {static_cast<A>(from[0]), static_cast<A>(from[1])};
    }
    static __device__ void write(const LogSum<A>& sum, const CarryNumbers& to, const CarriedRow&)
    {
        to[0] = sum.m, to[1] = sum.t;
    }
};

template <typename A>
struct CarryForm<LogcumsumexpPrefix<A>> {
    static __device__ LogcumsumexpPrefix<A> read(const CarryNumbers& from, const CarriedRow&)
    {
        return {static_cast<A>(from[0]), static_cast<A>(1.0 + from[1])};
    }
};

// A value, its index, which is NaN without elements, and the boundary (first_index_of_row).
template <typename A>
struct CarryForm<RankedExtremum<A>> {
    static __device__ A sign_of(const CarriedRow& row) { return row.args.flags & kMinimum ? A(-1) : A(1); }

    static __device__ RankedExtremum<A> read(const CarryNumbers& from, const CarriedRow& row)
    {
        if (from[1] != from[1]) return RankedExtremum<A>::identity();
        const i64 position = index_of_position(row.args, static_cast<i64>(from[1]) - row.first_index);
        const bool last_wins = !(row.args.flags & kFirst);
        return RankedExtremum<A>::of(
            static_cast<A>(from[0]) * sign_of(row), rank_of_position<true>(position, row.args.n, last_wins));
    }
    static __device__ void write(const RankedExtremum<A>& all, const CarryNumbers& to, const CarriedRow& row)
    {
        const i64 position = position_of_rank<true>(all.rank(), row.args.n, !(row.args.flags & kFirst)),
                  index = row.first_index + index_of_position(row.args, position);
        to[0] = all.value * sign_of(row);
        to[1] = all.rank() > 0 ? static_cast<double>(index) : NAN;
        to[2] = static_cast<double>(row.args.flags & kReversed ? row.first_index + row.args.n : row.first_index);
    }
};

template <typename A>
struct ExtremumPrefixForm {
    using Prefix = typename Cumextremum<A>::Prefix;

    static __device__ Prefix read(const CarryNumbers& from, const CarriedRow& row)
    {
        if (from[1] != from[1]) return Prefix::identity();
        return {rank_of(static_cast<A>(from[0]), row.args.flags & kMinimum ? A(-1) : A(1))};
    }
};
template <>
struct CarryForm<Cumextremum<float>::Prefix> : ExtremumPrefixForm<float> {};
template <>
struct CarryForm<Cumextremum<double>::Prefix> : ExtremumPrefixForm<double> {};
