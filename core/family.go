package core

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sort"
	"strings"
)

// Family is a group of operations that share a descriptor: its name, its kinds, and how to read a descriptor.
// Together the families are the table that every dispatch goes through: family x kind x dtype -> a CPU body and CUDA symbols.
type Family struct {
	Name     string // "lerp_backward": prefix of every symbol, and the op of every message
	Category string // "elementwise", "quantization", ...
	Image    string // the kernel image that holds the family's symbols: cuda/<Image>.cu
	Kinds    []KindRow
	Elements []DType  // the element types of its problems; nil: Floats
	One      bool     // one symbol, named like the family, is every kernel for every element type
	required []string // the fields that have no default in JSON
	decode   func(*json.Decoder) (Descriptor, error)
}

// KindRow is one operation of a family.
type KindRow struct {
	Name    string   // "cumprod"; empty where the family is one operation
	Kernels []string // the variants that Select chooses from, and that Preference.Kernel may name
	Code    string   // the kind in symbols, where kinds share kernels; empty: Name
	Image   string   // the image of the kind's kernels; empty: that of the family
}

func (k *KindRow) code() string { return cmp.Or(k.Code, k.Name) }

// Symbol is the name of a kernel: family, kind, variant, dtype.
func (f *Family) Symbol(kind, kernel string, dtype DType) string {
	if f.One {
		return f.Name
	}
	parts := []string{f.Name, f.kind(kind).code(), kernel, dtype.suffix()}
	if kind == "" {
		parts = append(parts[:1], parts[2:]...)
	}
	return strings.Join(parts, "_")
}

// image is the kernel image of a kind.
func (f *Family) image(kind string) string { return cmp.Or(f.kind(kind).Image, f.Image) }

// op is how messages call one operation: "scan_backward(cumprod)", or the family's name where it has one kind.
func (f *Family) op(kind string) string {
	if kind == "" {
		return f.Name
	}
	return fmt.Sprintf("%s(%s)", f.Name, kind)
}

func (f *Family) kind(name string) *KindRow {
	for i := range f.Kinds {
		if f.Kinds[i].Name == name {
			return &f.Kinds[i]
		}
	}
	return nil
}

var families = map[string]*Family{}

func register(f *Family) *Family {
	families[f.Name] = f
	return f
}

// Families lists the registered families by name.
func Families() []*Family {
	list := make([]*Family, 0, len(families))
	for _, f := range families {
		list = append(list, f)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	return list
}

// Descriptor states one problem of a family. The descriptor types of this package are its only implementations.
type Descriptor interface {
	// Family is the name of the family that the descriptor belongs to.
	Family() string
	problem() (*problem, error)
}

// decodeAs reads a descriptor of type D; unknown fields are refused.
func decodeAs[D Descriptor](decoder *json.Decoder) (Descriptor, error) {
	var d D
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&d)
	return d, err
}

// ParseDescriptor reads a descriptor from JSON: an object with the field "family" and the fields of that family's descriptor.
func ParseDescriptor(text string) (Descriptor, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		return nil, refuse(InvalidProblem, "sternway", "descriptor", "a JSON object", jsonFault(err), "")
	}
	var name string
	_ = json.Unmarshal(fields["family"], &name) // a missing or odd name is refused below
	family := families[name]
	if family == nil {
		known := make([]string, 0, len(families))
		for _, f := range Families() {
			known = append(known, f.Name)
		}
		return nil, refuse(InvalidProblem, "sternway", "family", orList(known), fmt.Sprintf("%q", name), "")
	}
	delete(fields, "family")
	body, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	d, err := family.decode(json.NewDecoder(bytes.NewReader(body)))
	var refusal *Error
	if errors.As(err, &refusal) {
		refusal.Op = name
		return nil, refusal
	}
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		return nil, refuse(InvalidProblem, name, wrong.Field, jsonWords[wrong.Type.Kind()], jsonFault(err), "")
	}
	if err != nil {
		return nil, refuse(InvalidProblem, name, "descriptor", "made of the fields of "+name, jsonFault(err), "")
	}
	for _, field := range family.required {
		if value := fields[field]; value == nil || string(value) == "null" {
			return nil, refuse(InvalidProblem, name, field, "given", "nothing", "")
		}
	}
	return d, nil
}

// jsonWords say what a field of a kind takes.
var jsonWords = map[reflect.Kind]string{
	reflect.Slice: "a list of integers", reflect.Int64: "an integer", reflect.Float64: "a number", reflect.Bool: "true or false", reflect.String: "a name",
}

// jsonFault says what was met in place of what a field takes, without the names of Go.
func jsonFault(err error) string {
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		return "a JSON " + wrong.Value
	}
	return clip(strings.TrimPrefix(err.Error(), "json: "))
}

// clip shortens text that comes from outside, so that a message stays one readable sentence.
func clip(text string) string {
	if len(text) > 200 {
		return text[:200] + "..."
	}
	return text
}

// problem is a checked descriptor: what Select needs to choose a kernel and what every run is checked against.
type problem struct {
	family   *Family
	kind     string
	element  DType
	aux      string // a second element type worth showing, such as that of q; may be empty
	operands []operand
	// presence checks which optional operands come together; nil where the list says all.
	presence func(args []Tensor) *Error
	// values checks the indices among the operands, which are on the host; nil where any numbers will do. Those of a GPU are copied
	// there under SetCheck alone, as that synchronises.
	values func(args []Tensor) *Error
	// bytes that an ideal pass with every operand moves.
	traffic   int64
	arch      string // of the device that the problem is compiled for: "amd64", "sm_90"
	bandwidth int64  // of its memory, bytes in a second
	// compile chooses a kernel for a device with the given number of multiprocessors.
	compile func(p *problem, units int, cuda bool, preference Preference) (program, error)
}

func (p *problem) op() string { return p.family.op(p.kind) }

// operand is one row of a problem's operand list.
type operand struct {
	name     string
	out      bool
	optional bool
	dtypes   []DType
	like     string    // "like dy": the reason of the dtype, for messages
	shapes   [][]int64 // every accepted shape; anyExtent for an extent that is free
}

// program is a chosen kernel: it turns checked operands into work for either backend.
type program interface {
	kernel() string   // the variant's name, for the SKU
	geometry() string // launch geometry in words
	workspace() int64 // bytes
	// inPlace reports whether output o of args may be exactly an input.
	inPlace(args []Tensor, o int) bool
	symbols() []symbol // what the device must load, in the order that launches refer to
	host(args []Tensor)
	device(args []Tensor, workspace uintptr, q *queue) error
}

// sparing is a program that needs its workspace for one operand, by number: runs without it need none. -1: every run needs it.
type sparing interface{ workspaceFor() int }

// symbol is a kernel by image and name.
type symbol struct{ image, name string }
