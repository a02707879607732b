package core

import (
	"fmt"
	"strings"
)

// DType is a DLPack data type: a type code, the bits of one lane and the number of lanes.
type DType struct {
	Code, Bits uint8
	Lanes      uint16
}

// DLPack type codes.
const (
	codeInt      = 0
	codeUint     = 1
	codeFloat    = 2
	codeBFloat   = 4
	codeComplex  = 5
	codeBool     = 6
	codeFloat8E4 = 10
	codeFloat8E5 = 12
)

// The element types that some operand may have.
var (
	Float32  = DType{codeFloat, 32, 1}
	Float64  = DType{codeFloat, 64, 1}
	Float16  = DType{codeFloat, 16, 1}
	BFloat16 = DType{codeBFloat, 16, 1}
	Int8     = DType{codeInt, 8, 1}
	Uint8    = DType{codeUint, 8, 1}
	Int32    = DType{codeInt, 32, 1}
	Int64    = DType{codeInt, 64, 1}
)

// dtypeRow is what the package knows of one element type. The number of a row is the code that kernels see.
type dtypeRow struct {
	dtype  DType
	suffix string // as kernel symbols spell it
}

var dtypeRows = [...]dtypeRow{
	{Float32, "f32"},
	{Float64, "f64"},
	{Float16, "f16"},
	{BFloat16, "bf16"},
	{Int8, "i8"},
	{Uint8, "u8"},
	{Int32, "i32"},
	{Int64, "i64"},
}

// Floats are the element types of gradients, in the order of the table.
var Floats = []DType{Float32, Float64, Float16, BFloat16}

// row returns the number of d in the table, or -1.
func (d DType) row() int {
	for i := range dtypeRows {
		if dtypeRows[i].dtype == d {
			return i
		}
	}
	return -1
}

// Size is the number of bytes of one element.
func (d DType) Size() int64 { return int64(d.Bits) * int64(d.Lanes) / 8 }

// Accumulator is the type that arithmetic is done in: float64 for float64, float32 for every other type.
func (d DType) Accumulator() DType {
	if d == Float64 {
		return Float64
	}
	return Float32
}

func (d DType) floating() bool { return d.Code == codeFloat || d.Code == codeBFloat }

func (d DType) suffix() string { return dtypeRows[d.row()].suffix }

// codeNames spell the type codes. The number of bits follows, but in those of 8 bits alone.
var codeNames = map[uint8]string{codeInt: "int", codeUint: "uint", codeFloat: "float", codeBFloat: "bfloat", codeComplex: "complex",
	codeBool: "bool", codeFloat8E4: "float8_e4m3fn", codeFloat8E5: "float8_e5m2"}

// String spells d as PyTorch does, also for types that no operand may have.
func (d DType) String() string {
	if d == (DType{}) {
		return "nothing"
	}
	name, known := codeNames[d.Code]
	switch {
	case !known:
		name = fmt.Sprintf("dtype code %d of %d bits", d.Code, d.Bits)
	case d.Code < codeBool:
		name += fmt.Sprint(d.Bits)
	}
	if d.Lanes != 1 {
		name += fmt.Sprintf("x%d", d.Lanes)
	}
	return name
}

// ParseDType reads a name such as "bfloat16", also of a type that no operand may have.
func ParseDType(name string) (DType, error) {
	for code := range codeNames {
		for bits := uint8(8); bits > 0; bits *= 2 {
			if d := (DType{code, bits, 1}); d.String() == name {
				return d, nil
			}
		}
	}
	var known []DType
	for _, row := range dtypeRows {
		known = append(known, row.dtype)
	}
	return DType{}, refuse(Unsupported, "sternway", "dtype", oneOf(known), fmt.Sprintf("%q", clip(name)), "")
}

// MarshalText spells d in a descriptor.
func (d DType) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads d from a descriptor.
func (d *DType) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDType(string(text))
	return err
}

// oneOf lists dtypes as a sentence does: "float32, float64 or float16".
func oneOf(dtypes []DType) string {
	names := make([]string, len(dtypes))
	for i, d := range dtypes {
		names[i] = d.String()
	}
	return orList(names)
}

func orList(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}
