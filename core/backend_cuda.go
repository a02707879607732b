package core

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/cuda"
)

// openDriver is replaced by tests with a fake.
var openDriver = driver.Open

// image is replaced by tests: the kernel image of a family for a device, nil when the package was built without kernels.
var image = cuda.Image

// cudaBackend is one device of the driver. Libraries and kernels are looked up once and kept.
type cudaBackend struct {
	device  driver.Device
	mu      sync.Mutex
	images  map[string]driver.Library
	kernels map[ops.Symbol]launch.Kernel
}

var (
	cudaMu       sync.Mutex
	cudaBackends = map[int32]*cudaBackend{}
	checking     atomic.Bool
)

// SetCheck makes every launch look at index values first and wait for its result, so that an error names the operation that caused it.
func SetCheck(on bool) { checking.Store(on) }

func cudaFor(ordinal int32, op string) (*cudaBackend, error) {
	cudaMu.Lock()
	defer cudaMu.Unlock()
	if b := cudaBackends[ordinal]; b != nil {
		return b, nil
	}
	d, err := openDriver()
	if err != nil {
		return nil, errs.New(errs.Unsupported, op, "device", "a CUDA device", err.Error(), `device="cpu" works on every machine`)
	}
	count := d.DeviceCount()
	if int(ordinal) >= count || ordinal < 0 {
		return nil, errs.New(errs.Unsupported, op, "device", fmt.Sprintf("one of the %d CUDA devices here", count), tensor.CUDA(int(ordinal)).String(), "")
	}
	device, err := d.Device(int(ordinal))
	if err != nil {
		return nil, deviceError(op, "device", err)
	}
	b := &cudaBackend{device: device, images: map[string]driver.Library{}, kernels: map[ops.Symbol]launch.Kernel{}}
	cudaBackends[ordinal] = b
	return b, nil
}

func (b *cudaBackend) Name() string     { return "cuda" }
func (b *cudaBackend) Arch() string     { return b.device.Arch() }
func (b *cudaBackend) Units() int       { return b.device.Multiprocessors() }
func (b *cudaBackend) Bandwidth() int64 { return b.device.Bandwidth() }

func (b *cudaBackend) Load(p *ops.Problem, program ops.Program) ([]launch.Kernel, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var kernels []launch.Kernel
	for _, symbol := range program.Symbols() {
		kernel, err := b.kernel(symbol, p.Op())
		if err != nil {
			return nil, err
		}
		kernels = append(kernels, kernel)
	}
	return kernels, nil
}

// kernel looks a kernel up once for the device.
func (b *cudaBackend) kernel(symbol ops.Symbol, op string) (launch.Kernel, error) {
	if kernel, found := b.kernels[symbol]; found {
		return kernel, nil
	}
	library, err := b.library(symbol.Image, op)
	if err != nil {
		return 0, err
	}
	kernel, err := library.Kernel(symbol.Name)
	if err != nil {
		return 0, deviceError(op, symbol.Name, err)
	}
	b.kernels[symbol] = kernel
	return kernel, nil
}

// library loads an image once for the device.
func (b *cudaBackend) library(name, op string) (driver.Library, error) {
	if library := b.images[name]; library != nil {
		return library, nil
	}
	code, err := image(name, b.device.Arch())
	if err != nil {
		return nil, deviceError(op, "kernel image", err)
	}
	if code == nil {
		return nil, errs.New(errs.Unsupported, op, "device", "cpu, as this build carries no CUDA kernels", "cuda",
			"install a wheel with kernels, or build with nvcc and without STERNWAY_CUDA=0")
	}
	library, err := b.device.Load(code)
	if err != nil {
		return nil, b.loadError(op, err)
	}
	b.images[name] = library
	return library, nil
}

// loadError tells a device that the image was not built for from a driver that failed.
func (b *cudaBackend) loadError(op string, err error) error {
	var status *driver.Status
	if errors.As(err, &status) && status.NoImage() {
		return errs.New(errs.Unsupported, op, "device", "of an architecture in the kernel image", b.device.Arch(),
			"rebuild with STERNWAY_CUDA_ARCHS set to it")
	}
	return deviceError(op, "kernel image", err)
}

func deviceError(op, operand string, err error) error {
	e := errs.New(errs.DeviceFailure, op, operand, "accepted by the driver", err.Error(), "")
	var status *driver.Status
	if errors.As(err, &status) {
		e.Status, e.Got, e.Hint = status.Name, status.Name+" in "+status.Call, status.Advice()
	}
	return e
}

// checkValues refuses wrong indices among the operands, of which it makes copies on the host.
func (b *cudaBackend) checkValues(p *Plan, args []tensor.Tensor, stream uintptr) error {
	if p.problem.Values == nil {
		return nil
	}
	args = slices.Clone(args)
	for i := range args {
		t := &args[i]
		if p.problem.Operands[i].Out || t.DType != tensor.Int32 && t.DType != tensor.Int64 || t.Empty() {
			continue
		}
		low, high, _ := t.Span()
		words := make([]uint64, (high-low+7)/8)
		copied := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), high-low)
		if err := b.device.Read(copied, uintptr(int64(t.Data)+low), stream); err != nil {
			return deviceError(p.op, p.problem.Operands[i].Name, err)
		}
		t.Pin = unsafe.Pointer(&words[0])
		t.Data = uintptr(int64(uintptr(t.Pin)) - low)
	}
	if refusal := p.problem.Values(args); refusal != nil {
		return refusal
	}
	runtime.KeepAlive(args)
	return nil
}

// Launch plays the plan's recipe where it fits, and otherwise works the launches out and keeps them as the new recipe.
func (b *cudaBackend) Launch(p *Plan, stream, workspace uintptr, args []tensor.Tensor, known *recipe) error {
	if checking.Load() {
		if err := b.checkValues(p, args, stream); err != nil {
			return err
		}
	}
	q := launch.Queues.Get().(*launch.Queue)
	defer launch.Queues.Put(q)
	q.Kernels, q.Device, q.Launch.Stream = p.kernels, b.device, stream
	var err error
	if known != nil {
		err = known.replay(q, args, workspace)
	} else {
		fresh := newRecipe(p, args)
		if fresh != nil {
			q.Recorded = &fresh.launches
		}
		if err = p.program.Device(args, workspace, q); err == nil && fresh != nil {
			p.recipe.Store(fresh)
		}
		q.Recorded = nil
	}
	if err == nil && checking.Load() {
		err = b.device.Synchronize(stream)
	}
	if err == nil {
		return nil
	}
	var refusal *errs.Error
	if errors.As(err, &refusal) {
		return err
	}
	return deviceError(p.op, "launch", err)
}
