// Package ops is what every operation is made of: a family in the table of operations, a descriptor that states a problem, its operands, and
// a program that runs it on either backend. It knows no operation by name.
package ops

import (
	"bytes"
	"cmp"
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

// Family is a group of operations that share a descriptor: its name, its kinds, and how to read a descriptor.
// Together the families are the table that every dispatch goes through: family x kind x dtype -> a CPU body and CUDA symbols.
type Family struct {
	Name     string // "lerp_backward": prefix of every symbol, and the op of every message
	Category string // "elementwise", "quantization", ...
	Image    string // the kernel image that holds the family's symbols: cuda/<Image>.cu
	Kinds    []KindRow
	Elements []tensor.DType // the element types of its problems; nil: Floats
	One      bool           // one symbol, named like the family, is every kernel for every element type
	Required []string       // the fields that have no default in JSON
	Decode   func(*json.Decoder) (Descriptor, error)
}

// KindRow is one operation of a family.
type KindRow struct {
	Name    string   // "cumprod"; empty where the family is one operation
	Kernels []string // the variants that Select chooses from, and that Preference.Kernel may name
	Code    string   // the kind in symbols, where kinds share kernels; empty: Name
	Image   string   // the image of the kind's kernels; empty: that of the family
}

func (k *KindRow) SymbolName() string { return cmp.Or(k.Code, k.Name) }

// Symbol is the name of a kernel: family, kind, variant, dtype.
func (f *Family) Symbol(kind, kernel string, dtype tensor.DType) string {
	if f.One {
		return f.Name
	}
	parts := []string{f.Name, f.Kind(kind).SymbolName(), kernel, dtype.Suffix()}
	if kind == "" {
		parts = append(parts[:1], parts[2:]...)
	}
	return strings.Join(parts, "_")
}

// ImageOf is the kernel image of a kind.
func (f *Family) ImageOf(kind string) string { return cmp.Or(f.Kind(kind).Image, f.Image) }

// Op is how messages call one operation: "scan_backward(cumprod)", or the family's name where it has one kind.
func (f *Family) Op(kind string) string {
	if kind == "" {
		return f.Name
	}
	return fmt.Sprintf("%s(%s)", f.Name, kind)
}

func (f *Family) Kind(name string) *KindRow {
	for i := range f.Kinds {
		if f.Kinds[i].Name == name {
			return &f.Kinds[i]
		}
	}
	return nil
}

var ByName = map[string]*Family{}

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

// Descriptor states one problem of a family. The descriptor types of this package are its only implementations.
type Descriptor interface {
	// Family is the name of the family that the descriptor belongs to.
	Family() string
	Problem() (*Problem, error)
}

// DecodeAs reads a descriptor of type D; unknown fields are refused.
func DecodeAs[D Descriptor](decoder *json.Decoder) (Descriptor, error) {
	var d D
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&d)
	return d, err
}

// ParseDescriptor reads a descriptor from JSON: an object with the field "family" and the fields of that family's descriptor.
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

// jsonWords say what a field of a kind takes.
var jsonWords = map[reflect.Kind]string{
	reflect.Slice: "a list of integers", reflect.Int64: "an integer", reflect.Float64: "a number", reflect.Bool: "true or false", reflect.String: "a name",
}

// JsonFault says what was met in place of what a field takes, without the names of Go.
func JSONFault(err error) string {
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		return "a JSON " + wrong.Value
	}
	return errs.Clip(strings.TrimPrefix(err.Error(), "json: "))
}

// Problem is a checked descriptor: what Select needs to choose a kernel and what every run is checked against.
type Problem struct {
	Family   *Family
	Kind     string
	Element  tensor.DType
	Aux      string // a second element type worth showing, such as that of q; may be empty
	Operands []Operand
	// Presence checks which optional operands come together; nil where the list says all.
	CheckPresence func(args []tensor.Tensor) *errs.Error
	// Values checks the indices among the operands, which are on the host; nil where any numbers will do. Those of a GPU are copied
	// there under SetCheck alone, as that synchronises.
	CheckValues func(args []tensor.Tensor) *errs.Error
	// bytes that an ideal pass with every operand moves.
	Traffic   int64
	Arch      string // of the device that the problem is compiled for: "amd64", "sm_90"
	Bandwidth int64  // of its memory, bytes in a second
	// Compile chooses a kernel for a device with the given number of multiprocessors.
	Compile func(p *Problem, units int, cuda bool, preference Preference) (Program, error)
}

func (p *Problem) Op() string { return p.Family.Op(p.Kind) }

// Operand is one row of a problem's operand list.
type Operand struct {
	Name     string
	Out      bool
	Optional bool
	Dtypes   []tensor.DType
	Like     string    // "like dy": the reason of the dtype, for messages
	Shapes   [][]int64 // every accepted shape; anyExtent for an extent that is free
}

// Program is a chosen kernel: it turns checked operands into work for either backend.
type Program interface {
	Kernel() string   // the variant's name, for the SKU
	Geometry() string // launch geometry in words
	Workspace() int64 // bytes
	// InPlace reports whether output o of args may be exactly an input.
	InPlace(args []tensor.Tensor, o int) bool
	Symbols() []launch.Symbol // what the device must load, in the order that launches refer to
	Host(args []tensor.Tensor)
	Device(args []tensor.Tensor, workspace uintptr, q *launch.Queue) error
}

// ConditionalWorkspace is a program that needs its workspace for one operand, by number: runs without it need none. -1: every run needs it.
type ConditionalWorkspace interface{ WorkspaceOperand() int }
