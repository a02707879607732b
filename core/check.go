package core

import (
	"fmt"
	"slices"
	"strings"
)

// check refuses operands that the plan cannot run on, in a fixed order: presence, then for each operand dtype, device, shape,
// layout, address; then overlaps; then values that are on the host. Nothing is written before every check has passed.
func (p *Plan) check(args []Tensor) error {
	if err := p.checkPresence(args); err != nil {
		return err
	}
	for i := range args {
		if !args[i].present() {
			continue
		}
		if err := p.checkOperand(&p.problem.operands[i], &args[i]); err != nil {
			return err
		}
	}
	if err := p.checkOverlaps(args); err != nil {
		return err
	}
	if p.problem.values != nil && p.device == CPU {
		if err := p.problem.values(args); err != nil {
			return err
		}
	}
	return nil
}

func (p *Plan) checkPresence(args []Tensor) error {
	if len(args) != len(p.problem.operands) {
		return refuse(InvalidProblem, p.op, "operands", fmt.Sprint(len(p.problem.operands), " of them"), fmt.Sprint(len(args)), "")
	}
	for i := range args {
		o := &p.problem.operands[i]
		if !args[i].present() && !o.optional {
			return refuse(InvalidProblem, p.op, o.name, "given", "nothing", "")
		}
	}
	if p.problem.presence != nil {
		if err := p.problem.presence(args); err != nil {
			return err
		}
	}
	return nil
}

func (p *Plan) checkOperand(o *operand, t *Tensor) error {
	op := p.op
	if t.NDim < 0 || t.NDim > MaxRank {
		return refuse(Unsupported, op, o.name, fmt.Sprintf("of rank 0 to %d", MaxRank), fmt.Sprint("rank ", t.NDim), "")
	}
	if !slices.Contains(o.dtypes, t.DType) {
		return p.refuseDType(o, t)
	}
	if t.Device != p.device && !(p.device.Type == deviceCPU && t.Device.Type == deviceCUDAHost) {
		return refuse(InvalidProblem, op, o.name, "on "+p.device.String(), t.Device.String(), "select the plan for the device of its operands")
	}
	if !slices.ContainsFunc(o.shapes, func(shape []int64) bool { return slices.EqualFunc(shape, t.shape(), allows) }) {
		wanted := make([]string, len(o.shapes))
		for i, shape := range o.shapes {
			wanted[i] = strings.ReplaceAll(shapeText(shape), fmt.Sprint(anyExtent), "n")
		}
		return refuse(InvalidProblem, op, o.name, "of shape "+orList(wanted), shapeText(t.shape()), "")
	}
	if o.out {
		if t.ReadOnly != 0 {
			return refuse(InvalidProblem, op, o.name, "writable", "a read-only array", "")
		}
		if selfOverlaps(t) {
			return refuse(InvalidProblem, op, o.name, "a view without repeated elements",
				"strides "+shapeText(t.strides())+" for shape "+shapeText(t.shape()), "an expanded tensor cannot be an output; give it memory of its own with contiguous()")
		}
	}
	return checkAddress(op, o.name, t)
}

// anyExtent stands in the shape of an operand for any extent.
const anyExtent = -1

func allows(wanted, got int64) bool { return wanted == got || wanted == anyExtent && got >= 0 }

func (p *Plan) refuseDType(o *operand, t *Tensor) error {
	wanted, hint := oneOf(o.dtypes), ""
	if o.like != "" {
		wanted += " " + o.like
	}
	switch {
	case o.like == "like dy":
		hint = fmt.Sprintf("convert it with %s.to(dy.dtype)", o.name)
	case len(o.dtypes) == 1:
		hint = fmt.Sprintf("convert it with %s.to(torch.%s)", o.name, o.dtypes[0])
	}
	return refuse(InvalidProblem, p.op, o.name, wanted, t.DType.String(), hint)
}

// checkAddress refuses an address that no element can have.
func checkAddress(op, name string, t *Tensor) error {
	if t.empty() {
		return nil
	}
	if t.Data == 0 {
		return refuse(InvalidProblem, op, name, "backed by memory", "a null pointer",
			"fake, meta and wrapped tensors have no storage, and a resized storage may have none left")
	}
	if size := uintptr(t.DType.Size()); t.Data%size != 0 {
		return refuse(Misaligned, op, name, fmt.Sprintf("at an address that is a multiple of %d", size), fmt.Sprintf("%#x", t.Data), "copy it with clone()")
	}
	if _, _, ok := t.span(); !ok {
		return refuse(InvalidProblem, op, name, "inside the address space",
			"strides "+shapeText(t.strides())+" for shape "+shapeText(t.shape()), "")
	}
	return nil
}

func (p *Plan) checkOverlaps(args []Tensor) error {
	for o := range args {
		out := &args[o]
		if !p.problem.operands[o].out || !out.present() {
			continue
		}
		for i := range args {
			other := &args[i]
			if i == o || !other.present() || p.problem.operands[i].out && i < o || disjoint(out, other) {
				continue
			}
			exact := out.same(other) && !p.problem.operands[i].out
			if exact && p.program.inPlace(args, o) {
				continue
			}
			got := "memory that overlaps it"
			if exact {
				got = "the same memory"
			}
			return refuse(InvalidProblem, p.op, p.problem.operands[o].name, "disjoint from "+p.problem.operands[i].name, got,
				"give the output memory of its own")
		}
	}
	return nil
}

// workspaceAlignment is what allocators of device memory give, and what 16-byte accesses and atomics need at the least.
const workspaceAlignment = 256

func (p *Plan) checkWorkspace(w *Tensor, args []Tensor) error {
	op, needed := p.op, p.program.workspace()
	if !w.present() {
		i := p.workspaceFor()
		if spared := i >= 0 && !args[i].present(); needed > 0 && !spared {
			e := refuse(WorkspaceTooSmall, op, "workspace", fmt.Sprintf("at least %d bytes", needed), "nothing", "")
			e.Needed = needed
			return e
		}
		return nil
	}
	if w.DType.Size() != 1 || w.NDim != 1 || w.Strides[0] != 1 && w.Shape[0] > 1 {
		return refuse(InvalidProblem, op, "workspace", "a contiguous uint8 array of rank 1",
			fmt.Sprintf("%s of rank %d and stride %d", w.DType, w.NDim, w.Strides[0]), "")
	}
	if w.Device != p.device {
		return refuse(InvalidProblem, op, "workspace", "on "+p.device.String(), w.Device.String(), "")
	}
	if w.ReadOnly != 0 {
		return refuse(InvalidProblem, op, "workspace", "writable", "a read-only array", "")
	}
	if w.Shape[0] < needed {
		e := refuse(WorkspaceTooSmall, op, "workspace", fmt.Sprintf("at least %d bytes", needed), fmt.Sprint(w.Shape[0]), "see plan.workspace_size")
		e.Needed, e.GotSize = needed, w.Shape[0]
		return e
	}
	if w.Shape[0] > 0 && w.Data%workspaceAlignment != 0 {
		return refuse(Misaligned, op, "workspace", fmt.Sprintf("aligned to %d bytes", workspaceAlignment), fmt.Sprintf("%#x", w.Data), "")
	}
	if err := checkAddress(op, "workspace", w); err != nil || needed == 0 {
		return err
	}
	for i := range args {
		if args[i].present() && !disjoint(w, &args[i]) {
			return refuse(InvalidProblem, op, "workspace", "disjoint from "+p.problem.operands[i].name, "memory that overlaps it", "")
		}
	}
	return nil
}
