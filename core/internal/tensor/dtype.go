package tensor

import (
	"fmt"
	"math"

	"github.com/sternway/sternway/core/internal/errs"
)

// This file is the table of dtypes.

// DType is a DLPack data type: a type code, the bits of one lane and the number of lanes.
type DType struct {
	Code, Bits uint8
	Lanes      uint16
}

// DLPack type codes.
const (
	codeInt      = 0
	CodeUint     = 1
	CodeFloat    = 2
	codeBFloat   = 4
	CodeComplex  = 5
	CodeBool     = 6
	CodeFloat8E4 = 10
	CodeFloat8E5 = 12
)

// The element types that some operand may have.
var (
	Float32  = DType{CodeFloat, 32, 1}
	Float64  = DType{CodeFloat, 64, 1}
	Float16  = DType{CodeFloat, 16, 1}
	BFloat16 = DType{codeBFloat, 16, 1}
	Int8     = DType{codeInt, 8, 1}
	Uint8    = DType{CodeUint, 8, 1}
	Int32    = DType{codeInt, 32, 1}
	Int64    = DType{codeInt, 64, 1}

	Float8E4M3 = DType{CodeFloat8E4, 8, 1}
	Float8E5M2 = DType{CodeFloat8E5, 8, 1}
	Int4       = DType{codeInt, 4, 1}  // packed: two to a byte, of which the lower bits are the first
	Uint4      = DType{CodeUint, 4, 1} // packed as Int4
)

// DTypeRow is the row of an element type in DTypeRows.
type DTypeRow struct {
	DType  DType
	Suffix string // of kernel symbols, and of functions in C
	CUDA   string // the type in CUDA
	XLA    int    // the number of the type in XLA
	Float  Float
	// IsStored: quantized values alone have the type. No operation computes in it or rounds to it.
	IsStored bool
}

// Float is the format of a floating-point type: the bits of the exponent and of the fraction. Both
// are 0 for an integer and for a type that is only stored.
type Float struct {
	Exponent, Fraction int
}

// DTypeRows is the table of element types, from which `make generate` writes the tables of the
// other languages. Kernels receive the index of a row as the code of a dtype. Floats come
// first, types that are only stored last.
var DTypeRows = [...]DTypeRow{
	{DType: Float32, Suffix: "f32", CUDA: "float", XLA: 11, Float: Float{Exponent: 8, Fraction: 23}},
	{DType: Float64, Suffix: "f64", CUDA: "double", XLA: 12, Float: Float{Exponent: 11, Fraction: 52}},
	{DType: Float16, Suffix: "f16", CUDA: "__half", XLA: 10, Float: Float{Exponent: 5, Fraction: 10}},
	{DType: BFloat16, Suffix: "bf16", CUDA: "__nv_bfloat16", XLA: 16, Float: Float{Exponent: 8, Fraction: 7}},
	{DType: Int8, Suffix: "i8", CUDA: "signed char", XLA: 2},
	{DType: Uint8, Suffix: "u8", CUDA: "unsigned char", XLA: 6},
	{DType: Int32, Suffix: "i32", CUDA: "int", XLA: 4},
	{DType: Int64, Suffix: "i64", CUDA: "i64", XLA: 5},
	{DType: Float8E4M3, Suffix: "e4m3", XLA: 20, IsStored: true},
	{DType: Float8E5M2, Suffix: "e5m2", XLA: 19, IsStored: true},
	{DType: Int4, Suffix: "i4", XLA: 21, IsStored: true},
	{DType: Uint4, Suffix: "u4", XLA: 22, IsStored: true},
}

// Floats are the element types of gradients, in the order of the table.
var Floats = floats()

func floats() (list []DType) {
	for i := range DTypeRows {
		if row := &DTypeRows[i]; row.DType.Floating() {
			list = append(list, row.DType)
		}
	}
	return list
}

// Epsilon is the distance from 1 to the next number.
func (f Float) Epsilon() float64 { return math.Ldexp(1, -f.Fraction) }

// Normal is the smallest positive number that has all digits of the fraction.
func (f Float) Normal() float64 { return math.Ldexp(1, 2-1<<(f.Exponent-1)) }

// Smallest is the smallest positive number.
func (f Float) Smallest() float64 { return f.Normal() * f.Epsilon() }

// Row returns the number of d in the table, or -1.
func (d DType) Row() int {
	for i := range DTypeRows {
		if DTypeRows[i].DType == d {
			return i
		}
	}
	return -1
}

// IsPacked reports whether a byte holds several elements.
func (d DType) IsPacked() bool { return d.Bits == 4 && d.Code <= CodeUint }

// Size is the number of bytes of one element; 0 if elements are packed.
func (d DType) Size() int64 { return int64(d.Bits) * int64(d.Lanes) / 8 }

// Accumulator is the type of arithmetic, and of sums on a GPU: float64 for float64, float32 for
// every other type. Sums on the CPU are float64.
func (d DType) Accumulator() DType {
	if d == Float64 {
		return Float64
	}
	return Float32
}

// Format is the format of a float, and empty for an integer. d is in the table.
func (d DType) Format() Float { return DTypeRows[d.Row()].Float }

// Floating reports whether d is a floating-point type of the table that operations compute in.
func (d DType) Floating() bool { return d.Row() >= 0 && d.Format() != (Float{}) }

// IsNarrow reports whether d is a float of at most 16 bits. Go and C compute with its bits alone,
// and convert blocks to float32.
func (d DType) IsNarrow() bool { return d.Bits <= 16 && d.Floating() }

// Suffix is the suffix of kernel symbols for d.
func (d DType) Suffix() string { return DTypeRows[d.Row()].Suffix }

// CodeNames are the names of the type codes. String appends the number of bits, except for bool and
// float8.
var CodeNames = map[uint8]string{codeInt: "int", CodeUint: "uint", CodeFloat: "float", codeBFloat: "bfloat", CodeComplex: "complex",
	CodeBool: "bool", CodeFloat8E4: "float8_e4m3fn", CodeFloat8E5: "float8_e5m2"}

// String spells d as PyTorch does, also for types that no operand may have.
func (d DType) String() string {
	if d == (DType{}) {
		return "nothing"
	}
	name, known := CodeNames[d.Code]
	switch {
	case !known:
		name = fmt.Sprintf("dtype code %d of %d bits", d.Code, d.Bits)
	case d.Code < CodeBool:
		name += fmt.Sprint(d.Bits)
	}
	if d.Lanes != 1 {
		name += fmt.Sprintf("x%d", d.Lanes)
	}
	return name
}

// ParseDType reads a name such as "bfloat16", also of a type that no operand may have.
func ParseDType(name string) (DType, error) {
	for code := range CodeNames {
		for _, bits := range []uint8{8, 16, 32, 64, 128, 4} {
			if d := (DType{code, bits, 1}); d.String() == name {
				return d, nil
			}
		}
	}
	var known []DType
	for _, row := range DTypeRows {
		known = append(known, row.DType)
	}
	return DType{}, errs.New(errs.Unsupported, "sternway", "dtype", OneOf(known), fmt.Sprintf("%q", errs.Clip(name)), "")
}

// MarshalText spells d in a descriptor.
func (d DType) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads d from a descriptor.
func (d *DType) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDType(string(text))
	return err
}

// OneOf lists dtypes as a sentence does: "float32, float64 or float16".
func OneOf(dtypes []DType) string {
	names := make([]string, len(dtypes))
	for i, d := range dtypes {
		names[i] = d.String()
	}
	return errs.OrList(names)
}
