// Package ops defines the parts of an operation: its family in the table of operations, the
// descriptor that states a problem, the operands, and the program that runs on a backend. The
// packages in its subdirectories implement the operations and import it; it knows none of them by
// name.
package ops

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sort"
	"strings"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Family is a group of operations that share a descriptor type. The registered families are the
// dispatch table of the package: family, kind and dtype select the host code and the CUDA kernels.
type Family struct {
	Name        string // "lerp_backward": the operation in messages
	Category    string // "elementwise", "quantization", ...
	Image       string // the kernel image: cuda/<Image>.cu; empty: the kinds have several
	Kinds       []KindRow
	HostKernels []string       // variants on the CPU; nil: named like the kernels of the kind
	HostSums    HostSums       // how sums are carried on the CPU
	Elements    []tensor.DType // the element types of its problems; nil: Floats
	Required    []string       // descriptor fields without a default in JSON
	Choices     []Choice       // descriptor fields that take one of some names, without kind; Python checks them, too
	Decode      Decoder
}

// HostSums is the dtype of sums on the CPU.
type HostSums int

const (
	InFloat64     HostSums = iota
	InAccumulator          // of the element, as on a GPU
)

// Decoder reads the JSON form of a descriptor.
type Decoder func(*json.Decoder) (Descriptor, error)

// KindRow is one operation of a family.
type KindRow struct {
	Name    string   // "cumprod"; empty if the family is a single operation
	Kernels []string // variants that Select chooses from and that Preference.Kernel may name
}

// Op is the name of one operation in messages: "scan_backward(cumprod)", or the family's name if it
// has one kind.
func (f *Family) Op(kind string) string {
	if kind == "" {
		return f.Name
	}
	return fmt.Sprintf("%s(%s)", f.Name, kind)
}

// KindNames are the names of the kinds; none if the family is a single operation.
func (f *Family) KindNames() []string {
	var names []string
	for _, kind := range f.Kinds {
		if kind.Name != "" {
			names = append(names, kind.Name)
		}
	}
	return names
}

// Kind is the row of a kind, or nil.
func (f *Family) Kind(name string) *KindRow {
	for i := range f.Kinds {
		if f.Kinds[i].Name == name {
			return &f.Kinds[i]
		}
	}
	return nil
}

// ByName holds the registered families by name.
var ByName = map[string]*Family{}

// Register adds a family to the table and returns it.
func Register(f *Family) *Family {
	ByName[f.Name] = f
	return f
}

// Families lists the registered families by name.
func Families() []*Family {
	list := make([]*Family, 0, len(ByName))
	for _, f := range ByName {
		list = append(list, f)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	return list
}

// Descriptor states one problem of a family as plain data. Each operation package has its own
// types.
type Descriptor interface {
	// Family is the name of the descriptor's family.
	Family() string
	// Problem checks the descriptor.
	Problem() (*Problem, error)
}

// DecodeAs reads a descriptor of type D; unknown fields are refused.
func DecodeAs[D Descriptor](decoder *json.Decoder) (Descriptor, error) {
	var d D
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&d)
	return d, err
}

// ParseDescriptor reads a descriptor from JSON: an object with the field "family" and the fields of
// that family's descriptor.
func ParseDescriptor(text string) (Descriptor, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		return nil, errs.New(errs.InvalidProblem, "sternway", "descriptor", "a JSON object", JSONFault(err), "")
	}
	var name string
	_ = json.Unmarshal(fields["family"], &name) // a missing or odd name is refused below
	family := ByName[name]
	if family == nil {
		known := make([]string, 0, len(ByName))
		for _, f := range Families() {
			known = append(known, f.Name)
		}
		return nil, errs.New(errs.InvalidProblem, "sternway", "family", errs.OrList(known), fmt.Sprintf("%q", name), "")
	}
	delete(fields, "family")
	body, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	d, err := family.Decode(json.NewDecoder(bytes.NewReader(body)))
	var refusal *errs.Error
	if errors.As(err, &refusal) {
		refusal.Op = name
		return nil, refusal
	}
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		return nil, errs.New(errs.InvalidProblem, name, wrong.Field, jsonWords[wrong.Type.Kind()], JSONFault(err), "")
	}
	if err != nil {
		return nil, errs.New(errs.InvalidProblem, name, "descriptor", "made of the fields of "+name, JSONFault(err), "")
	}
	for _, field := range family.Required {
		if value := fields[field]; value == nil || string(value) == "null" {
			return nil, errs.New(errs.InvalidProblem, name, field, "given", "nothing", "")
		}
	}
	return d, nil
}

// jsonWords names the JSON value that a field of a Go kind accepts.
var jsonWords = map[reflect.Kind]string{
	reflect.Slice: "a list of integers", reflect.Int64: "an integer", reflect.Float64: "a number", reflect.Bool: "true or false", reflect.String: "a name",
}

// JSONFault describes a JSON error without Go type names.
func JSONFault(err error) string {
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		return "a JSON " + wrong.Value
	}
	return errs.Clip(strings.TrimPrefix(err.Error(), "json: "))
}

// Problem is a checked descriptor: the input of kernel selection, and the specification that the
// operands of every run are checked against.
type Problem struct {
	Family   *Family
	Kind     string
	Element  tensor.DType
	Aux      string // a second element type for the SKU, such as the dtype of q; may be empty
	Operands []Operand
	// CheckPresence checks which optional operands are given together; nil if Operand.Optional
	// suffices.
	CheckPresence func(args []tensor.Tensor) *errs.Error
	// CheckValues checks index operands in host memory; nil if any values are valid. Operands on a
	// GPU are copied to the host only under core.SetCheck, because the copy synchronizes.
	CheckValues func(args []tensor.Tensor) *errs.Error
	Traffic     int64  // bytes that an ideal pass over all operands moves
	Arch        string // architecture of the selected device: "amd64", "sm_90"
	Bandwidth   int64  // memory bandwidth of the device in bytes per second
	// Compile makes the program for a device: of the CPU, or of a GPU (cuda) with a number of SMs.
	Compile func(p *Problem, numSMs int, cuda bool, preference Preference) (Program, error)
}

// Op is the name of the operation in messages.
func (p *Problem) Op() string { return p.Family.Op(p.Kind) }

// Operand is one row of a problem's operand list.
type Operand struct {
	Name       string
	Out        bool
	Optional   bool
	Contiguous bool // other layouts are refused
	DTypes     []tensor.DType
	Like       string    // "like dy": the reason for the dtype, for messages
	Shapes     [][]int64 // accepted shapes; AnyExtent accepts any extent
}

// Program is the part of a plan that runs checked operands on the host, or launches CUDA kernels
// for them.
type Program interface {
	Kernel() string                   // name of the variant for contiguous operands, for the SKU
	Workspace() int64                 // bytes of device memory that suffice for every run
	Tasks(args []tensor.Tensor) int64 // tasks among which Host shares its main work, with these operands
	// InPlace reports whether output o of args may be the same memory as an input.
	InPlace(args []tensor.Tensor, o int) bool
	Symbols() []launch.Symbol // kernels to load; launches refer to them by index
	Host(args []tensor.Tensor)
	Device(args []tensor.Tensor, workspace uintptr, q *launch.Queue) error
}

// ConditionalWorkspace is a program some of whose runs need less than Workspace, or nothing.
type ConditionalWorkspace interface {
	// WorkspaceNeed is the number of bytes that suffices for a run. Bit i of given says that
	// operand i is given; contiguous, that all these are.
	WorkspaceNeed(given uint, contiguous bool) int64
}
