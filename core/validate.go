package core

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file checks the operands of a run before anything is written.

// check validates the operands of a run in a fixed order: presence; then for each operand dtype,
// device, shape, layout and address; then overlaps; then index values if they are in host memory.
// No output is written before every check has passed.
func (p *Plan) check(args []tensor.Tensor) error {
	if err := p.checkPresence(args); err != nil {
		return err
	}
	for i := range args {
		if !args[i].Given() {
			continue
		}
		if err := p.checkOperand(&p.problem.Operands[i], &args[i]); err != nil {
			return err
		}
	}
	if err := p.checkOverlaps(args); err != nil {
		return err
	}
	if p.problem.CheckValues != nil && p.device == tensor.CPU {
		if err := p.problem.CheckValues(args); err != nil {
			return err
		}
	}
	return nil
}

// checkPresence refuses missing operands and combinations of optional operands that the operation
// does not accept.
func (p *Plan) checkPresence(args []tensor.Tensor) error {
	if len(args) != len(p.problem.Operands) {
		return errs.New(errs.InvalidProblem, p.op, "operands", fmt.Sprint(len(p.problem.Operands), " of them"), fmt.Sprint(len(args)), "")
	}
	for i := range args {
		o := &p.problem.Operands[i]
		if !args[i].Given() && !o.Optional {
			return errs.New(errs.InvalidProblem, p.op, o.Name, "given", "nothing", "")
		}
	}
	if p.problem.CheckPresence != nil {
		if err := p.problem.CheckPresence(args); err != nil {
			return err
		}
	}
	return nil
}

// CheckShapes returns nil, or the error that Run would return for the presence, dtypes and shapes
// of operands in the order of Operands. It uses no address.
func (p *Plan) CheckShapes(args []tensor.Tensor) error {
	if err := p.checkPresence(args); err != nil {
		return err
	}
	for i := range args {
		if !args[i].Given() {
			continue
		}
		if err := p.checkShape(&p.problem.Operands[i], &args[i]); err != nil {
			return err
		}
	}
	return nil
}

// checkShape validates the rank, dtype, device and shape of one operand against its row in the
// problem, o.
func (p *Plan) checkShape(o *ops.Operand, t *tensor.Tensor) error {
	op := p.op
	if t.NDim < 0 || t.NDim > tensor.MaxRank {
		return errs.New(errs.Unsupported, op, o.Name, fmt.Sprintf("of rank 0 to %d", tensor.MaxRank), fmt.Sprint("rank ", t.NDim), "")
	}
	if !slices.Contains(o.DTypes, t.DType) {
		return p.dtypeError(o, t)
	}
	if t.Device != p.device && !(p.device.Type == tensor.DeviceCPU && t.Device.Type == tensor.DeviceCUDAHost) {
		return errs.New(errs.InvalidProblem, op, o.Name, "on "+p.device.String(), t.Device.String(), "select the plan for the device of its operands")
	}
	if !slices.ContainsFunc(o.Shapes, func(shape []int64) bool { return slices.EqualFunc(shape, t.Extents(), allows) }) {
		wanted := make([]string, len(o.Shapes))
		for i, shape := range o.Shapes {
			wanted[i] = strings.ReplaceAll(tensor.ShapeText(shape), fmt.Sprint(ops.AnyExtent), "n")
		}
		return errs.New(errs.InvalidProblem, op, o.Name, "of shape "+errs.OrList(wanted), tensor.ShapeText(t.Extents()), "")
	}
	return nil
}

// checkOperand validates one operand against its row in the problem, o.
func (p *Plan) checkOperand(o *ops.Operand, t *tensor.Tensor) error {
	op := p.op
	if err := p.checkShape(o, t); err != nil {
		return err
	}
	if o.Contiguous && !t.Contiguous() {
		return errs.New(errs.Unsupported, op, o.Name, "contiguous", "strides "+tensor.ShapeText(t.ElementStrides())+" for shape "+tensor.ShapeText(t.Extents()), "")
	}
	if o.Out {
		if t.ReadOnly != 0 {
			return errs.New(errs.InvalidProblem, op, o.Name, "writable", "a read-only array", "")
		}
		if tensor.SelfOverlaps(t) {
			return errs.New(errs.InvalidProblem, op, o.Name, "a view without repeated elements",
				"strides "+tensor.ShapeText(t.ElementStrides())+" for shape "+tensor.ShapeText(t.Extents()), "").
				With(errs.Fix{Ask: "an expanded tensor cannot be an output; give it memory of its own", Do: errs.ToDense})
		}
	}
	return checkAddress(op, o.Name, t)
}

// allows reports whether an extent satisfies a wanted one, which may be ops.AnyExtent.
func allows(wanted, got int64) bool { return wanted == got || wanted == ops.AnyExtent && got >= 0 }

// dtypeError is the error for an operand of a wrong dtype, with the conversion that corrects an
// input. The conversion of an output would write into another one.
func (p *Plan) dtypeError(o *ops.Operand, t *tensor.Tensor) error {
	wanted := tensor.OneOf(o.DTypes)
	if o.Like != "" {
		wanted += " " + o.Like
	}
	e := errs.New(errs.InvalidProblem, p.op, o.Name, wanted, t.DType.String(), "")
	if o.Out || len(o.DTypes) != 1 {
		return e
	}
	fix := errs.Fix{Ask: "convert it", Do: errs.ToDType, DType: o.DTypes[0].String()}
	if like, isLike := strings.CutPrefix(o.Like, "like "); isLike {
		fix.Like = like
	}
	return e.With(fix)
}

// checkAddress refuses a null or misaligned address, and one whose elements leave the address
// space.
func checkAddress(op, name string, t *tensor.Tensor) error {
	if t.Empty() {
		return nil
	}
	if t.Data == 0 {
		return errs.New(errs.InvalidProblem, op, name, "backed by memory", "a null pointer",
			"fake, meta and wrapped tensors have no storage, and a resized storage may have none left")
	}
	if size := uintptr(t.DType.Size()); t.Data%size != 0 {
		return errs.New(errs.Misaligned, op, name, fmt.Sprintf("at an address that is a multiple of %d", size), fmt.Sprintf("%#x", t.Data), "").
			With(errs.Fix{Ask: "copy it", Do: errs.ToAligned})
	}
	if _, _, ok := t.Span(); !ok {
		return errs.New(errs.InvalidProblem, op, name, "inside the address space",
			"strides "+tensor.ShapeText(t.ElementStrides())+" for shape "+tensor.ShapeText(t.Extents()), "")
	}
	return nil
}

// checkOverlaps refuses outputs that share memory with another operand, except an output that is
// exactly an input if the program allows it. Views that interleave regularly are disjoint; where
// tensor.Disjoint cannot tell, the output is refused.
func (p *Plan) checkOverlaps(args []tensor.Tensor) error {
	for o := range args {
		out := &args[o]
		if !p.problem.Operands[o].Out || !out.Given() {
			continue
		}
		for i := range args {
			other := &args[i]
			if i == o || !other.Given() || p.problem.Operands[i].Out && i < o || tensor.Disjoint(out, other) {
				continue
			}
			exact := out.Same(other) && !p.problem.Operands[i].Out
			if exact && p.program.InPlace(args, o) {
				continue
			}
			got := "memory that overlaps it"
			if exact {
				got = "the same memory"
			}
			return errs.New(errs.InvalidProblem, p.op, p.problem.Operands[o].Name, "disjoint from "+p.problem.Operands[i].Name, got,
				"give the output memory of its own")
		}
	}
	return nil
}

// givenOf returns the arguments of WorkspaceNeed.
func givenOf(args []tensor.Tensor) (given uint, contiguous bool) {
	contiguous = true
	for i := range args {
		if args[i].Given() {
			given |= 1 << i
			contiguous = contiguous && args[i].Contiguous()
		}
	}
	return given, contiguous
}

// checkWorkspace validates the workspace tensor of a run.
func (p *Plan) checkWorkspace(w *tensor.Tensor, args []tensor.Tensor) error {
	op, needed := p.op, p.program.Workspace()
	if !w.Given() {
		if needed > 0 && p.WorkspaceNeed(givenOf(args)) > 0 {
			e := errs.New(errs.WorkspaceTooSmall, op, "workspace", fmt.Sprintf("at least %d bytes", needed), "nothing", "")
			e.Needed = needed
			return e
		}
		return nil
	}
	if w.DType.Size() != 1 || w.NDim != 1 || w.Strides[0] != 1 && w.Shape[0] > 1 {
		return errs.New(errs.InvalidProblem, op, "workspace", "a contiguous uint8 array of rank 1",
			fmt.Sprintf("%s of rank %d and stride %d", w.DType, w.NDim, w.Strides[0]), "")
	}
	if w.Device != p.device {
		return errs.New(errs.InvalidProblem, op, "workspace", "on "+p.device.String(), w.Device.String(), "")
	}
	if w.ReadOnly != 0 {
		return errs.New(errs.InvalidProblem, op, "workspace", "writable", "a read-only array", "")
	}
	if w.Shape[0] < needed && w.Shape[0] < p.WorkspaceNeed(givenOf(args)) {
		e := errs.New(errs.WorkspaceTooSmall, op, "workspace", fmt.Sprintf("at least %d bytes", needed), fmt.Sprint(w.Shape[0]), "see plan.workspace_size")
		e.Needed, e.GotSize = needed, w.Shape[0]
		return e
	}
	if w.Shape[0] > 0 && w.Data%launch.WorkspaceAlignment != 0 {
		return errs.New(errs.Misaligned, op, "workspace", fmt.Sprintf("aligned to %d bytes", launch.WorkspaceAlignment), fmt.Sprintf("%#x", w.Data), "")
	}
	if err := checkAddress(op, "workspace", w); err != nil || needed == 0 {
		return err
	}
	for i := range args {
		if args[i].Given() && !tensor.Disjoint(w, &args[i]) {
			return errs.New(errs.InvalidProblem, op, "workspace", "disjoint from "+p.problem.Operands[i].Name, "memory that overlaps it", "")
		}
	}
	return nil
}
