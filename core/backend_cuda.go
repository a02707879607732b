package core

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/cuda"
)

// Kernel is a loaded kernel of one device.
type Kernel = driver.Kernel

// openDriver is replaced by tests with a fake.
var openDriver = driver.Open

// image is replaced by tests: the kernel image of a family for a device, nil when the package was built without kernels.
var image = cuda.Image

// cudaBackend is one device of the driver. Libraries and kernels are looked up once and kept.
type cudaBackend struct {
	device  driver.Device
	mu      sync.Mutex
	images  map[string]driver.Library
	kernels map[symbol]Kernel
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
		return nil, refuse(Unsupported, op, "device", "a CUDA device", err.Error(), `device="cpu" works on every machine`)
	}
	count := d.DeviceCount()
	if int(ordinal) >= count || ordinal < 0 {
		return nil, refuse(Unsupported, op, "device", fmt.Sprintf("one of the %d CUDA devices here", count), CUDA(int(ordinal)).String(), "")
	}
	device, err := d.Device(int(ordinal))
	if err != nil {
		return nil, deviceError(op, "device", err)
	}
	b := &cudaBackend{device: device, images: map[string]driver.Library{}, kernels: map[symbol]Kernel{}}
	cudaBackends[ordinal] = b
	return b, nil
}

func (b *cudaBackend) Name() string     { return "cuda" }
func (b *cudaBackend) Arch() string     { return b.device.Arch() }
func (b *cudaBackend) Units() int       { return b.device.Multiprocessors() }
func (b *cudaBackend) Bandwidth() int64 { return b.device.Bandwidth() }

func (b *cudaBackend) Load(p *problem, program program) ([]Kernel, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var kernels []Kernel
	for _, symbol := range program.symbols() {
		kernel, err := b.kernel(symbol, p.op())
		if err != nil {
			return nil, err
		}
		kernels = append(kernels, kernel)
	}
	return kernels, nil
}

// kernel looks a kernel up once for the device.
func (b *cudaBackend) kernel(symbol symbol, op string) (Kernel, error) {
	if kernel, found := b.kernels[symbol]; found {
		return kernel, nil
	}
	library, err := b.library(symbol.image, op)
	if err != nil {
		return 0, err
	}
	kernel, err := library.Kernel(symbol.name)
	if err != nil {
		return 0, deviceError(op, symbol.name, err)
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
		return nil, refuse(Unsupported, op, "device", "cpu, as this build carries no CUDA kernels", "cuda",
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
		return refuse(Unsupported, op, "device", "of an architecture in the kernel image", b.device.Arch(),
			"rebuild with STERNWAY_CUDA_ARCHS set to it")
	}
	return deviceError(op, "kernel image", err)
}

func deviceError(op, operand string, err error) error {
	e := refuse(DeviceFailure, op, operand, "accepted by the driver", err.Error(), "")
	var status *driver.Status
	if errors.As(err, &status) {
		e.Status, e.Got, e.Hint = status.Name, status.Name+" in "+status.Call, status.Advice()
	}
	return e
}

// queue receives the launches of one run.
type queue struct {
	launch  driver.Launch
	kernels []Kernel
	device  driver.Device
	patches []patch
	recipe  *recipe // nil: the run is not recorded
}

var queues = sync.Pool{New: func() any { return new(queue) }}

// begin forgets the words of the last launch.
func (q *queue) begin() {
	q.launch.Reset()
	q.launch.Shared, q.launch.Cluster, q.launch.Together = 0, 0, false
	q.patches = q.patches[:0]
}

// address packs the address of an operand of the plan, or of the workspace.
func (q *queue) address(operand int, value uintptr) {
	q.patches = append(q.patches, patch{len(q.launch.Words()), operand})
	q.launch.Put(uint64(value))
}

// submit launches kernel number i of the plan with the words packed so far. Empty grids are left out.
func (q *queue) submit(i int, grid int64, block uint32) error {
	if grid == 0 {
		return nil
	}
	if grid > math.MaxInt32 {
		return refuse(Unsupported, "", "launch", fmt.Sprintf("of at most %d blocks", math.MaxInt32), fmt.Sprint(grid), "split the tensor")
	}
	q.launch.Grid, q.launch.Block = uint32(grid), block
	if q.recipe != nil {
		q.recipe.launches = append(q.recipe.launches, recordedLaunch{i, q.launch, slices.Clone(q.patches)})
	}
	return q.device.Launch(q.kernels[i], &q.launch)
}

// clusters is how many clusters of so many blocks of kernel number i the device holds at once.
func (q *queue) clusters(i int, blocks int64, block, shared uint32) int64 {
	l := driver.Launch{Grid: uint32(blocks), Block: block, Shared: shared, Cluster: uint32(blocks)}
	return int64(q.device.Clusters(q.kernels[i], &l))
}

// checkValues refuses wrong indices among the operands, of which it makes copies on the host.
func (b *cudaBackend) checkValues(p *Plan, args []Tensor, stream uintptr) error {
	if p.problem.values == nil {
		return nil
	}
	args = slices.Clone(args)
	for i := range args {
		t := &args[i]
		if p.problem.operands[i].out || t.DType != Int32 && t.DType != Int64 || t.empty() {
			continue
		}
		low, high, _ := t.span()
		words := make([]uint64, (high-low+7)/8)
		copied := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), high-low)
		if err := b.device.Read(copied, uintptr(int64(t.Data)+low), stream); err != nil {
			return deviceError(p.op, p.problem.operands[i].name, err)
		}
		t.pin = unsafe.Pointer(&words[0])
		t.Data = uintptr(int64(uintptr(t.pin)) - low)
	}
	if refusal := p.problem.values(args); refusal != nil {
		return refusal
	}
	runtime.KeepAlive(args)
	return nil
}

// Launch plays the plan's recipe where it fits, and otherwise works the launches out and keeps them as the new recipe.
func (b *cudaBackend) Launch(p *Plan, stream, workspace uintptr, args []Tensor, known *recipe) error {
	if checking.Load() {
		if err := b.checkValues(p, args, stream); err != nil {
			return err
		}
	}
	q := queues.Get().(*queue)
	defer queues.Put(q)
	q.kernels, q.device, q.launch.Stream = p.kernels, b.device, stream
	var err error
	if known != nil {
		err = known.replay(q, args, workspace)
	} else {
		q.recipe = newRecipe(p, args)
		if err = p.program.device(args, workspace, q); err == nil && q.recipe != nil {
			p.recipe.Store(q.recipe)
		}
		q.recipe = nil
	}
	if err == nil && checking.Load() {
		err = b.device.Synchronize(stream)
	}
	if err == nil {
		return nil
	}
	var refusal *Error
	if errors.As(err, &refusal) {
		return err
	}
	return deviceError(p.op, "launch", err)
}
