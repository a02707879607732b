// Package xla runs plans for XLA, the compiler of JAX, as handlers of its foreign function
// interface.
//
// A handler gets a problem as text in an attribute of the call, and the buffers of its operands.
// The text says everything, so that a compiled program can be stored, and loaded by another process
// or on another device. The plan is selected when a text is first seen on a device: on CUDA that is
// in XLA's stage "initialize", outside the capture of a CUDA graph.
package xla

// #cgo CFLAGS: -O2 -Wall -Wextra
// #include "handler.h"
import "C"

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/sternway/sternway/core"
	_ "github.com/sternway/sternway/pybind/pytensor" // thread.c
)

// Handler is the address of the handler of a platform, "cpu" or "CUDA"; 0: there is none. It states
// the version 0.minor of XLA's interface, or the nearest one that it knows.
func Handler(platform string, minor int64) int64 {
	C.sw_xla_set_minor(C.int(minor))
	switch platform {
	case "cpu":
		return int64(uintptr(unsafe.Pointer(C.sw_xla_cpu)))
	case "CUDA":
		return int64(uintptr(unsafe.Pointer(C.sw_xla_cuda)))
	}
	return 0
}

// workspaceName is the name of the scratch memory among the buffers of a call.
const workspaceName = "workspace"

// maxBuffers is the largest number of buffers of a call.
const maxBuffers = int(C.SW_MAX_OPERANDS)

// program is a plan with the places of a call's buffers among its operands. The workspace has the
// place behind the last operand.
type program struct {
	plan   *core.Plan
	places []int
	count  int // of operands
}

// site is a call by its text, on a device; the ordinal of the CPU is negative.
type site struct {
	text    string
	ordinal int32
}

// maxPrograms is the number of programs that are kept. A program that was dropped is made again
// when it is called.
const maxPrograms = 4096

var programs = struct {
	sync.RWMutex
	bySite map[site]*program
}{bySite: map[site]*program{}}

// frames holds operand lists between runs, so that a run allocates nothing.
var frames = sync.Pool{New: func() any { return new([maxBuffers + 1]core.Tensor) }}

//export sw_go_xla
func sw_go_xla(call *C.sw_xla_call) {
	text := unsafe.String((*byte)(unsafe.Pointer(call.text)), int(call.length)) // XLA's memory, for this call
	buffers := unsafe.Slice((*core.Tensor)(unsafe.Pointer(&call.buffers[0])), int(call.count))
	err := run(text, int32(call.ordinal), call.prepares != 0, buffers, uintptr(call.stream))
	if err == nil {
		return
	}
	call.code = C.int32_t(codeOf(err))
	message := unsafe.Slice((*byte)(unsafe.Pointer(&call.message[0])), len(call.message))
	message[copy(message[:len(message)-1], err.Error())] = 0
}

// run runs the plan of a call, or only selects it (prepares). A panic, which would end the process,
// becomes an error.
func run(text string, ordinal int32, prepares bool, buffers []core.Tensor, stream uintptr) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("sternway: a panic: %v; please report this", fault)
		}
	}()
	p, err := programOf(text, ordinal)
	if err != nil || prepares {
		return err
	}
	if len(buffers) != len(p.places) {
		return fmt.Errorf("sternway: a call names %d buffers and has %d", len(p.places), len(buffers))
	}
	frame := frames.Get().(*[maxBuffers + 1]core.Tensor)
	defer frames.Put(frame)
	clear(frame[:p.count+1])
	for i, place := range p.places {
		frame[place] = buffers[i]
	}
	workspace := &frame[p.count]
	if workspace.Given() {
		align(workspace)
	}
	return p.plan.RunOrdered(stream, *workspace, frame[:p.count])
}

// workspaceAlignment is the alignment of a workspace in bytes. XLA aligns buffers less, so that the
// buffer of a workspace is larger by as much (jax/_call.py).
const workspaceAlignment = 256

// align moves the beginning of a workspace to the next aligned address.
func align(workspace *core.Tensor) {
	skipped := -workspace.Data & (workspaceAlignment - 1)
	if workspace.NDim == 1 && workspace.Shape[0] >= int64(skipped) {
		workspace.Data += skipped
		workspace.Shape[0] -= int64(skipped)
	}
}

// programOf returns the program of a call on a device, and makes it at first.
func programOf(text string, ordinal int32) (*program, error) {
	programs.RLock()
	p := programs.bySite[site{text, ordinal}]
	programs.RUnlock()
	if p != nil {
		return p, nil
	}
	p, err := newProgram(text, ordinal)
	if err != nil {
		return nil, err
	}
	programs.Lock()
	defer programs.Unlock()
	if len(programs.bySite) >= maxPrograms {
		clear(programs.bySite)
	}
	programs.bySite[site{strings.Clone(text), ordinal}] = p
	return p, nil
}

// newProgram selects the plan of a call, whose text is an object with a descriptor and the names of
// the buffers: inputs, then outputs.
func newProgram(text string, ordinal int32) (*program, error) {
	var call struct {
		Descriptor json.RawMessage `json:"descriptor"`
		Operands   []string        `json:"operands"`
	}
	if err := json.Unmarshal([]byte(text), &call); err != nil {
		return nil, fmt.Errorf("sternway: the attribute of a call is no description of one: %w", err)
	}
	device := "cpu"
	if ordinal >= 0 {
		device = fmt.Sprintf("cuda:%d", ordinal)
	}
	plan, err := core.SelectJSON(string(call.Descriptor), device, "{}")
	if err != nil {
		return nil, err
	}
	names := append(plan.Operands(), workspaceName)
	p := &program{plan: plan, count: len(names) - 1}
	for _, name := range call.Operands {
		place := slices.Index(names, name)
		if place < 0 || slices.Contains(p.places, place) {
			return nil, fmt.Errorf("sternway: %s has no operand %q, or it is named twice", plan.SKU().Op, name)
		}
		p.places = append(p.places, place)
	}
	return p, nil
}

// Error codes of XLA, which are those of Abseil.
const (
	codeInvalidArgument = 3
	codeUnimplemented   = 12
	codeInternal        = 13
)

// codeOf is the error code for an error of a run.
func codeOf(err error) int {
	var refusal *core.Error
	if !errors.As(err, &refusal) {
		return codeInternal
	}
	switch refusal.Kind {
	case core.Unsupported:
		return codeUnimplemented
	case core.DeviceFailure, core.Internal:
		return codeInternal
	}
	return codeInvalidArgument
}
