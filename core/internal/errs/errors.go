// Package errs defines the error type of sternway: a kind, the operation and operand, the wanted
// value and the value found.
package errs

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Kind is the category of an [Error]. Python raises one exception class for each kind.
type Kind string

// The kinds of error.
const (
	Unsupported       Kind = "unsupported"         // a dtype, device, layout or option that no kernel has
	InvalidProblem    Kind = "invalid_problem"     // a descriptor or operand that contradicts itself or the descriptor
	BufferTooSmall    Kind = "buffer_too_small"    // a view that reaches outside its storage
	Misaligned        Kind = "misaligned"          // an address that is not a multiple of the required alignment
	WorkspaceTooSmall Kind = "workspace_too_small" // fewer bytes than the operands need
	DeviceFailure     Kind = "device"              // a call of the CUDA driver failed
	NotATensor        Kind = "type"                // an object that is not a tensor
	Internal          Kind = "internal"            // a bug in sternway
)

// Sentinels for errors.Is.
var (
	ErrUnsupported       = &Error{Kind: Unsupported}
	ErrInvalidProblem    = &Error{Kind: InvalidProblem}
	ErrBufferTooSmall    = &Error{Kind: BufferTooSmall}
	ErrMisaligned        = &Error{Kind: Misaligned}
	ErrWorkspaceTooSmall = &Error{Kind: WorkspaceTooSmall}
	ErrDevice            = &Error{Kind: DeviceFailure}
)

// Error is the type of the errors that sternway returns. It reads as one sentence:
//
//	lerp_backward: weight must be float32 like dy, got float64; convert it to the dtype of dy
type Error struct {
	Kind    Kind   `json:"kind"`
	Op      string `json:"op"`
	Operand string `json:"operand"`
	Wanted  string `json:"wanted"` // completes "must be"
	Got     string `json:"got"`
	Hint    string `json:"hint"`
	Fix     *Fix   `json:"fix,omitempty"` // what Hint advises, if Python can say it as a call of the operand's library
	Needed  int64  `json:"needed"`        // bytes, for BufferTooSmall and WorkspaceTooSmall
	GotSize int64  `json:"got_bytes"`     // bytes, for BufferTooSmall and WorkspaceTooSmall
	Status  string `json:"status"`        // the driver's name for its error, as in CUDA_ERROR_OUT_OF_MEMORY
}

// Fix is a conversion of the operand that corrects an error. Array libraries have different names
// for it, so that Go states it in words, and Python as a call of the library of the operand.
type Fix struct {
	Ask   string `json:"ask"` // begins the hint: "convert it"
	Do    FixDo  `json:"do"`
	DType string `json:"dtype"` // of a conversion
	Like  string `json:"like"`  // the operand whose dtype this is; may be empty
}

// FixDo is the kind of a [Fix].
type FixDo string

// The kinds of conversion.
const (
	ToDType   FixDo = "to_dtype"   // another dtype
	ToAligned FixDo = "to_aligned" // a copy, whose address is aligned
	ToDense   FixDo = "to_dense"   // a copy without repeated elements
)

// String is the hint in words.
func (f Fix) String() string {
	switch {
	case f.Like != "":
		return f.Ask + " to the dtype of " + f.Like
	case f.DType != "":
		return f.Ask + " to " + f.DType
	}
	return f.Ask
}

// With adds a fix and its hint to an error.
func (e *Error) With(f Fix) *Error {
	e.Fix, e.Hint = &f, f.String()
	return e
}

// Error is the message: operation, operand, wanted value, found value, hint.
func (e *Error) Error() string {
	text := fmt.Sprintf("%s: %s must be %s, got %s", e.Op, e.Operand, e.Wanted, e.Got)
	if e.Hint != "" {
		text += "; " + e.Hint
	}
	return text
}

// Is makes errors.Is(err, ErrUnsupported) compare kinds. A target without an operand is a sentinel.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Kind == e.Kind && t.Operand == ""
}

// New builds an error; hint may be empty.
func New(kind Kind, op, operand, wanted, got, hint string) *Error {
	return &Error{Kind: kind, Op: op, Operand: operand, Wanted: wanted, Got: got, Hint: hint}
}

// ErrorJSON encodes an error for Python: the fields of [Error] and its message. Errors of other
// types are of kind Internal.
func ErrorJSON(err error) string {
	var e *Error
	if !errors.As(err, &e) {
		e = New(Internal, "sternway", "the call", "answered", err.Error(), "please report this")
	}
	text, _ := json.Marshal(struct {
		*Error
		Message string `json:"message"`
	}{e, e.Error()})
	return string(text)
}

// Clip shortens text from the caller to 200 bytes, so that a message stays readable.
func Clip(text string) string {
	if len(text) > 200 {
		return text[:200] + "..."
	}
	return text
}

// OrList joins names as in "a, b or c".
func OrList(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}
