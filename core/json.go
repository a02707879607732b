package core

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strconv"
	"strings"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/cuda"
)

// This file is the JSON interface of the package, for Python.

// Version is the version of the Python package, set by its build.
var Version = "0.0.0+go"

// SelectJSON is Select with text arguments: a descriptor in JSON, a device such as "cuda:0", and a
// preference in JSON.
func SelectJSON(descriptor, device, preference string) (*Plan, error) {
	d, err := ops.ParseDescriptor(descriptor)
	if err != nil {
		return nil, err
	}
	at, err := ParseDevice(device)
	if err != nil {
		return nil, err
	}
	fields := struct {
		Deterministic bool   `json:"deterministic"`
		MaxWorkspace  *int64 `json:"max_workspace"`
		Kernel        string `json:"kernel"`
	}{Deterministic: true}
	decoder := json.NewDecoder(strings.NewReader(preference))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&fields); err != nil {
		return nil, errs.New(errs.InvalidProblem, d.Family(), "preference", "made of deterministic, max_workspace and kernel",
			ops.JSONFault(err), "")
	}
	return Select(d, at, Preference{Nondeterministic: !fields.Deterministic, MaxWorkspace: fields.MaxWorkspace, Kernel: fields.Kernel})
}

// ParseDevice reads "cpu", "cuda" (the first device) or "cuda:N".
func ParseDevice(text string) (tensor.Device, error) {
	kind, ordinal, given := strings.Cut(text, ":")
	n, err := strconv.ParseInt(ordinal, 10, 32)
	switch {
	case text == "cpu" || text == "cpu:0":
		return tensor.CPU, nil
	case text == "cuda":
		return tensor.CUDA(0), nil
	case kind == "cuda" && given && err == nil && n >= 0:
		return tensor.CUDA(int(n)), nil
	}
	return tensor.Device{}, errs.New(errs.Unsupported, "select", "device", "cpu or cuda:N", fmt.Sprintf("%q", errs.Clip(text)), "")
}

// DescribeJSON describes a plan to Python: its operands, SKU, workspace, and the tasks or launches
// of a run.
func (p *Plan) DescribeJSON() string {
	type row struct {
		Name     string `json:"name"`
		Out      bool   `json:"out"`
		Optional bool   `json:"optional"`
	}
	rows := make([]row, len(p.problem.Operands))
	for i, o := range p.problem.Operands {
		rows[i] = row{o.Name, o.Out, o.Optional}
	}
	text, _ := json.Marshal(map[string]any{
		"operands": rows, "device": p.device.String(), "sku": p.SKU(),
		"workspace_size": p.WorkspaceSize(),
		"geometry":       p.geometry(), "bytes": p.problem.Traffic,
	})
	return string(text)
}

// CheckShapesJSON is CheckShapes with operands by name, as an object of dtypes and shapes:
// {"dy": ["float32", [4, 8]]}.
func (p *Plan) CheckShapesJSON(operands string) error {
	var given map[string][2]json.RawMessage
	if err := json.Unmarshal([]byte(operands), &given); err != nil {
		return errs.New(errs.InvalidProblem, p.op, "operands", "an object of dtypes and shapes", ops.JSONFault(err), "")
	}
	args := Args{}
	for name, fields := range given {
		t := tensor.Tensor{Device: p.device, Present: 1}
		var shape []int64
		if err := json.Unmarshal(fields[0], &t.DType); err != nil {
			return errs.New(errs.InvalidProblem, p.op, name, "of a dtype that an operand can have", errs.Clip(string(fields[0])), "")
		}
		if err := json.Unmarshal(fields[1], &shape); err != nil {
			return errs.New(errs.InvalidProblem, p.op, name, "of a shape", ops.JSONFault(err), "")
		}
		t.NDim = int32(len(shape))
		copy(t.Shape[:], shape)
		copy(t.Strides[:], tensor.Compact(shape)) // of the buffers of XLA
		args[name] = t
	}
	ordered, err := p.order(args)
	if err != nil {
		return err
	}
	return p.CheckShapes(ordered)
}

// InfoJSON describes this build and machine: versions, backends, devices, kernel image, threads.
func InfoJSON() string {
	info := map[string]any{"version": Version, "go": runtime.Version(), "threads": NumThreads(), "backends": []string{"cpu"}}
	var families []string
	for _, f := range ops.Families() {
		families = append(families, f.Name)
	}
	info["families"] = families
	info["kernel_image"] = nil
	if manifest := cuda.Manifest(); manifest != nil {
		info["kernel_image"] = json.RawMessage(manifest)
	}
	d, err := launch.Driver()
	if err != nil {
		info["driver"], info["devices"] = err.Error(), []string{}
	} else {
		info["driver"] = launch.CUDAVersion(d.Version())
		devices := []map[string]any{}
		for i := range d.DeviceCount() {
			found, err := launch.DeviceOf(int32(i), "info")
			if err != nil {
				devices = append(devices, map[string]any{"device": tensor.CUDA(i).String(), "error": err.Error()})
				continue
			}
			devices = append(devices, map[string]any{"device": tensor.CUDA(i).String(), "name": found.Name(), "arch": found.Arch(),
				"multiprocessors": found.Multiprocessors(), "memory": found.Memory()})
		}
		info["devices"] = devices
		if len(devices) > 0 && cuda.Manifest() != nil {
			info["backends"] = []string{"cpu", "cuda"}
		}
	}
	text, _ := json.Marshal(info)
	return string(text)
}
