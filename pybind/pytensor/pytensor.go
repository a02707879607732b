// Package pytensor reads Python tensors into plain Go structures through DLPack.
//
// An object whose type has the DLPack C exchange API is borrowed in some ten nanoseconds; a DLPack
// capsule is read without being consumed; None stands for an absent operand. A tuple wraps an
// object whose producer is not trusted; the address range of its description is checked too.
// Nothing is kept: the caller holds the objects for as long as their memory is used.
package pytensor

// #cgo CFLAGS: -O2 -Wall -Wextra
// #cgo noescape sw_read
// #include "pytensor.h"
import "C"

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/sternway/sternway/core"
)

// core.Tensor and sw_tensor have the same layout. These constants assert it: -(a ^ b) of unsigned
// constants compiles only if a == b.
const (
	_ = -(unsafe.Sizeof(core.Tensor{}) ^ C.sizeof_sw_tensor)
	_ = -(unsafe.Offsetof(core.Tensor{}.Data) ^ unsafe.Offsetof(C.sw_tensor{}.data))
	_ = -(unsafe.Offsetof(core.Tensor{}.DType) ^ unsafe.Offsetof(C.sw_tensor{}.code))
	_ = -(unsafe.Offsetof(core.DType{}.Bits) ^ 1)
	_ = -(unsafe.Offsetof(core.DType{}.Lanes) ^ 2)
	_ = -(unsafe.Offsetof(core.Tensor{}.Device) ^ unsafe.Offsetof(C.sw_tensor{}.device_type))
	_ = -(unsafe.Offsetof(core.Device{}.Index) ^ 4)
	_ = -(unsafe.Offsetof(core.Tensor{}.NDim) ^ unsafe.Offsetof(C.sw_tensor{}.ndim))
	_ = -(unsafe.Offsetof(core.Tensor{}.Present) ^ unsafe.Offsetof(C.sw_tensor{}.present))
	_ = -(unsafe.Offsetof(core.Tensor{}.ReadOnly) ^ unsafe.Offsetof(C.sw_tensor{}.read_only))
	_ = -(unsafe.Offsetof(core.Tensor{}.Shape) ^ unsafe.Offsetof(C.sw_tensor{}.shape))
	_ = -(unsafe.Offsetof(core.Tensor{}.Strides) ^ unsafe.Offsetof(C.sw_tensor{}.strides))
	_ = -(core.MaxRank ^ uint(C.SW_MAX_RANK))
)

// answers holds C structures between calls, so that a call allocates nothing.
var answers = sync.Pool{New: func() any { return new(C.sw_answer) }}

// Read fills out from the items of the tuple whose id() is operands and returns their number. With
// a [core.Error], n is the number of the item that it is about. A *stream of -1 becomes the
// producer's current stream for the first CUDA tensor, or 0 when there is none.
func Read(operands int64, out []core.Tensor, stream *int64) (n int, err error) {
	answer := answers.Get().(*C.sw_answer)
	defer answers.Put(answer)
	answer.stream = C.int64_t(*stream)
	tensors := (*C.sw_tensor)(unsafe.Pointer(unsafe.SliceData(out)))
	code := C.sw_read(C.int64_t(operands), C.int32_t(len(out)), tensors, answer)
	n = int(answer.item)
	if code != C.SW_OK {
		return n, refusal(code, answer)
	}
	*stream = int64(answer.stream)
	return n, nil
}

// Run runs a plan by its handle; the operands are in the plan's order, the workspace last.
type Run func(plan int64, operands []core.Tensor, stream int64) error

// runFast finds a plan by its handle and calls its RunOrdered, for operands that fast_path.c has
// read. StoreTorch sets it.
var runFast Run

// StoreTorch stores the torch functions of a list, given by its id(), that fast_path.c calls, and
// appends the fast path of Run to the list.
func StoreTorch(list int64, run Run) bool {
	runFast = run
	return C.sw_store_torch(C.int64_t(list)) == C.SW_OK
}

//export sw_go_attach
func sw_go_attach() {}

//export sw_go_run
func sw_go_run(plan C.int64_t, tensors *C.sw_tensor, count C.int32_t, stream C.int64_t) (ran C.int32_t) {
	defer func() {
		if recover() != nil { // the general path runs the plan again, panics as well, and reports it
			ran = 0
		}
	}()
	if runFast(int64(plan), unsafe.Slice((*core.Tensor)(unsafe.Pointer(tensors)), int(count)), int64(stream)) == nil {
		return 1
	}
	return 0
}

// refusal is the error of an answer; its Op and Operand are the caller's to fill in.
func refusal(code C.int32_t, answer *C.sw_answer) error {
	text := strings.ToValidUTF8(C.GoString(&answer.text[0]), "")
	switch code {
	case C.SW_NO_TENSOR:
		return &core.Error{Kind: core.NotATensor, Wanted: "a tensor that DLPack can describe", Got: text}
	case C.SW_NO_CAPSULE:
		return &core.Error{Kind: core.NotATensor, Wanted: "an array whose __dlpack__ returns a capsule", Got: text}
	case C.SW_NO_PRODUCER:
		return &core.Error{Kind: core.Unsupported, Wanted: "a tensor that its producer can lend", Got: strconv.Quote(text)}
	case C.SW_RANK:
		return &core.Error{Kind: core.Unsupported, Wanted: fmt.Sprintf("of at most %d dimensions", core.MaxRank), Got: text}
	case C.SW_MALFORMED:
		return &core.Error{Kind: core.InvalidProblem, Wanted: "a tensor that its producer describes in full", Got: text}
	case C.SW_NO_PYTHON:
		return &core.Error{Kind: core.Internal, Wanted: "read inside a Python process", Got: "a call from outside"}
	}
	return &core.Error{Kind: core.Internal, Wanted: "an item of a tuple of operands", Got: "something else"}
}
