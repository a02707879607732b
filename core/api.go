package core

import (
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file names the public types and constants of the packages below core; descriptors.gen.go
// names the descriptors.

// MaxRank is the largest number of dimensions of a tensor.
const MaxRank = tensor.MaxRank

// Operands and their devices.
type (
	// Tensor is a view of memory owned by the caller: an address, a dtype, a device, a shape and
	// strides in elements.
	Tensor = tensor.Tensor
	// DType is an element type as DLPack encodes it: type code, bits, lanes.
	DType = tensor.DType
	// Device is a device as DLPack encodes it: type and index.
	Device = tensor.Device
)

// The dtypes of operands.
var (
	Float32  = tensor.Float32
	Float64  = tensor.Float64
	Float16  = tensor.Float16
	BFloat16 = tensor.BFloat16
	Int8     = tensor.Int8
	Uint8    = tensor.Uint8
	Int32    = tensor.Int32
	Int64    = tensor.Int64
)

// CPU is the host device.
var CPU = tensor.CPU

// CUDA is a GPU by its ordinal.
func CUDA(ordinal int) Device { return tensor.CUDA(ordinal) }

// Of returns a contiguous CPU tensor that views a slice; without a shape it has one dimension.
func Of[T float32 | float64 | uint16 | int8 | uint8 | int32 | int64](data []T, shape ...int64) Tensor {
	return tensor.Of(data, shape...)
}

// ParseDType reads the name of a dtype: "float32".
func ParseDType(name string) (DType, error) { return tensor.ParseDType(name) }

// Error is the type of the errors of this package; Kind is the category of an error.
type (
	Error = errs.Error
	Kind  = errs.Kind
)

// The kinds of error. errs.Kind says when each is returned.
const (
	Unsupported       = errs.Unsupported
	InvalidProblem    = errs.InvalidProblem
	BufferTooSmall    = errs.BufferTooSmall
	Misaligned        = errs.Misaligned
	WorkspaceTooSmall = errs.WorkspaceTooSmall
	DeviceFailure     = errs.DeviceFailure
	NotATensor        = errs.NotATensor
	Internal          = errs.Internal
)

// Sentinels for errors.Is.
var (
	ErrUnsupported       = errs.ErrUnsupported
	ErrInvalidProblem    = errs.ErrInvalidProblem
	ErrBufferTooSmall    = errs.ErrBufferTooSmall
	ErrMisaligned        = errs.ErrMisaligned
	ErrWorkspaceTooSmall = errs.ErrWorkspaceTooSmall
	ErrDevice            = errs.ErrDevice
)

// ErrorJSON encodes an error for Python: the fields of [Error] and its message.
func ErrorJSON(err error) string { return errs.ErrorJSON(err) }

// Problems, families and preferences.
type (
	// Descriptor states one problem of a family.
	Descriptor = ops.Descriptor
	// Family is a group of operations that share a descriptor.
	Family = ops.Family
	// KindRow is one operation of a family.
	KindRow = ops.KindRow
	// Choice is a field of a descriptor that takes one of some names.
	Choice = ops.Choice
	// Preference steers Select.
	Preference = ops.Preference
	// Scalar is a float64 whose JSON form also carries NaN and infinities.
	Scalar = ops.Scalar
)

// Families lists the families by name.
func Families() []*Family { return ops.Families() }

// ParseDescriptor reads a descriptor from JSON: an object with the field "family" and the fields of
// that family's descriptor.
func ParseDescriptor(text string) (Descriptor, error) { return ops.ParseDescriptor(text) }
