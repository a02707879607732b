// Package pybind is the native interface for Python: functions of integers and strings, bound by
// gopy.
//
// A plan crosses as a handle, its operands as the id() of a tuple that the caller keeps alive:
// (workspace, operand, operand, ...) in the plan's order, None for an absent one. An error crosses
// as the text of [core.ErrorJSON]. A panic would end the Python process, so every function turns
// one into an error; and every function returns a value beside its error, because gopy leaks the
// message of an error that stands alone.
package pybind

import (
	"errors"
	"fmt"
	"sync"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/pybind/pytensor"
	"github.com/sternway/sternway/pybind/xla"
)

// plans maps handles to plans. A handle is never used twice.
var plans = struct {
	sync.RWMutex
	byHandle map[int64]*core.Plan
	last     int64
}{byHandle: map[int64]*core.Plan{}}

// frames holds operand lists between runs, so that a run allocates nothing.
var frames = sync.Pool{New: func() any { return new([maxOperands]core.Tensor) }}

// maxOperands is more than any family's operands and the workspace.
const maxOperands = 24

// Select makes a plan from a descriptor, a device and a preference, and returns its handle.
func Select(descriptor, device, preference string) (handle int64, err error) {
	defer recoverTo(&err)
	plan, err := core.SelectJSON(descriptor, device, preference)
	if err != nil {
		return 0, encodeError(err)
	}
	plans.Lock()
	defer plans.Unlock()
	plans.last++
	plans.byHandle[plans.last] = plan
	return plans.last, nil
}

// Describe returns what Python shows of a plan, as JSON.
func Describe(plan int64) (text string, err error) {
	defer recoverTo(&err)
	p, err := lookup(plan)
	if err != nil {
		return "", encodeError(err)
	}
	return p.DescribeJSON(), nil
}

// WorkspaceNeed returns how many bytes of workspace suffice for a run. Bit i of given says that
// operand i is given; contiguous is 1 if all these are, and 0 otherwise.
func WorkspaceNeed(plan, given, contiguous int64) (bytes int64, err error) {
	defer recoverTo(&err)
	p, err := lookup(plan)
	if err != nil {
		return 0, encodeError(err)
	}
	return p.WorkspaceNeed(uint(given), contiguous == 1), nil
}

// Inspect describes a tensor, the only item of a tuple as [Run] takes it, as JSON: shape, strides
// in elements, dtype, device, address of the first element, and whether it is read-only. It reads
// the description only, and waits for no stream.
func Inspect(operands int64) (text string, err error) {
	defer recoverTo(&err)
	frame := frames.Get().(*[maxOperands]core.Tensor)
	defer frames.Put(frame)
	stream := int64(0)
	n, err := pytensor.Read(operands, frame[:], &stream)
	if err != nil {
		return "", encodeError(err)
	}
	if n != 1 || frame[0].Present == 0 {
		return "", encodeError(&core.Error{Kind: core.NotATensor, Wanted: "one tensor", Got: fmt.Sprint(n, " items")})
	}
	return frame[0].DescribeJSON(), nil
}

// Release forgets a plan; a run that has begun ends undisturbed. It returns how many plans were
// forgotten.
func Release(plan int64) (count int64, err error) {
	defer recoverTo(&err)
	plans.Lock()
	defer plans.Unlock()
	if plans.byHandle[plan] != nil {
		count = 1
	}
	delete(plans.byHandle, plan)
	return count, nil
}

// CanImplement checks the operands as Run does, and runs nothing.
func CanImplement(plan, operands int64) (zero int64, err error) {
	defer recoverTo(&err)
	return 0, encodeError(withOperands(plan, operands, 0,
		func(p *core.Plan, _ uintptr, workspace core.Tensor, args []core.Tensor) error {
			return p.CanImplementOrdered(workspace, args)
		}))
}

// CheckShapes checks which operands are given, and their dtypes and shapes, as Run does. They are
// JSON: an object by name of a dtype and a shape, {"dy": ["float32", [4, 8]]}.
func CheckShapes(plan int64, operands string) (zero int64, err error) {
	defer recoverTo(&err)
	p, err := lookup(plan)
	if err == nil {
		err = p.CheckShapesJSON(operands)
	}
	return 0, encodeError(err)
}

// Run runs a plan on a stream; -1 asks the producer of the operands for its current stream.
func Run(plan, operands, stream int64) (zero int64, err error) {
	defer recoverTo(&err)
	return 0, encodeError(withOperands(plan, operands, stream, (*core.Plan).RunOrdered))
}

// runOperands is Run for operands that were read, the workspace last.
func runOperands(plan int64, operands []core.Tensor, stream int64) error {
	p, err := lookup(plan)
	if err != nil {
		return err
	}
	last := len(operands) - 1
	return p.RunOrdered(uintptr(stream), operands[last], operands[:last])
}

// StoreTorch makes the fast path of Run for plain torch tensors (pytensor/fast_path.c). The list,
// given by its id(), holds the torch functions that it calls; the fast path is appended to it. It
// returns 1 if the list has the expected length.
func StoreTorch(list int64) (stored int64, err error) {
	defer recoverTo(&err)
	if pytensor.StoreTorch(list, runOperands) {
		stored = 1
	}
	return stored, nil
}

// XLAHandler returns the address of the function by which XLA runs plans on a platform, "cpu" or
// "CUDA". The version of XLA's foreign function interface is 0.minor.
func XLAHandler(platform string, minor int64) (address int64, err error) {
	defer recoverTo(&err)
	return xla.Handler(platform, minor), nil
}

// Info describes the build and the machine, as JSON.
func Info() (text string, err error) {
	defer recoverTo(&err)
	return core.InfoJSON(), nil
}

// SetNumThreads sets the number of threads of the CPU backend.
func SetNumThreads(n int64) (zero int64, err error) {
	defer recoverTo(&err)
	return 0, encodeError(core.SetNumThreads(int(n)))
}

// GetNumThreads returns the number of threads of the CPU backend.
func GetNumThreads() (n int64, err error) {
	defer recoverTo(&err)
	return int64(core.NumThreads()), nil
}

// SetCheck turns the checks of index values and the synchronization after each launch on (1) or off
// (0).
func SetCheck(on int64) (zero int64, err error) {
	defer recoverTo(&err)
	core.SetCheck(on != 0)
	return 0, nil
}

// withOperands reads the operands and hands them to f.
func withOperands(plan, operands, stream int64, f func(*core.Plan, uintptr, core.Tensor, []core.Tensor) error) error {
	p, err := lookup(plan)
	if err != nil {
		return err
	}
	frame := frames.Get().(*[maxOperands]core.Tensor)
	defer frames.Put(frame)
	n, err := pytensor.Read(operands, frame[:], &stream)
	if err != nil {
		return withOperandName(err, p, n)
	}
	return f(p, uintptr(stream), frame[0], frame[1:n])
}

func lookup(handle int64) (*core.Plan, error) {
	plans.RLock()
	p := plans.byHandle[handle]
	plans.RUnlock()
	if p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("plan %d, which is not selected or was released", handle)
}

// withOperandName completes an error of pytensor about item i of a plan's tuple.
func withOperandName(err error, p *core.Plan, i int) error {
	var e *core.Error
	if errors.As(err, &e) {
		e.Op, e.Operand = p.SKU().Op, "workspace"
		if names := p.Operands(); 0 < i && i <= len(names) {
			e.Operand = names[i-1]
		}
	}
	return err
}

// encodeError encodes err for Python.
func encodeError(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(core.ErrorJSON(err))
}

// recoverTo, deferred, turns a panic into the error that a function returns.
func recoverTo(err *error) {
	if fault := recover(); fault != nil {
		*err = encodeError(fmt.Errorf("a panic: %v", fault))
	}
}
