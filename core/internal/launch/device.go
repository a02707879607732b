package launch

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/cuda"
)

// Symbol names a kernel: the image that holds it, and its name there.
type Symbol struct{ Image, Name string }

// Device is one CUDA device with a cache of its loaded images and kernels.
type Device struct {
	driver.Device
	version int // of CUDA that the driver supports, as driver.Driver.Version
	mu      sync.Mutex
	images  map[string]driver.Library
	kernels map[Symbol]Kernel
}

// Source provides the driver and the kernel images; tests replace it.
type Source struct {
	Open    func() (driver.Driver, error)                   // the driver
	Image   func(name, architecture string) ([]byte, error) // a kernel image; nil where the package was built without kernels
	Toolkit func() int                                      // the major version of the CUDA toolkit that compiled the images
}

var (
	mu      sync.Mutex
	source  = Source{driver.Open, cuda.Image, cuda.Toolkit}
	devices = map[int32]*Device{}
)

// Replace sets another source with no devices open, and returns a function that restores the former
// one. It is for tests.
func Replace(s Source) (undo func()) {
	mu.Lock()
	defer mu.Unlock()
	formerSource, formerDevices := source, devices
	source, devices = s, map[int32]*Device{}
	return func() {
		mu.Lock()
		defer mu.Unlock()
		source, devices = formerSource, formerDevices
	}
}

// Driver opens the driver.
func Driver() (driver.Driver, error) {
	mu.Lock()
	defer mu.Unlock()
	return source.Open()
}

// DeviceOf is the device with an ordinal. Error messages name the operation op.
func DeviceOf(ordinal int32, op string) (*Device, error) {
	mu.Lock()
	defer mu.Unlock()
	if d := devices[ordinal]; d != nil {
		return d, nil
	}
	opened, err := source.Open()
	if err != nil {
		got := fmt.Sprintf("%s: %v", tensor.CUDA(int(ordinal)), err)
		return nil, errs.New(errs.Unsupported, op, "device", "a CUDA device of this machine", got, `device="cpu" works on every machine`)
	}
	count := opened.DeviceCount()
	if int(ordinal) >= count || ordinal < 0 {
		return nil, errs.New(errs.Unsupported, op, "device", fmt.Sprintf("one of the %d CUDA devices here", count), tensor.CUDA(int(ordinal)).String(), "")
	}
	device, err := opened.Device(int(ordinal))
	if err != nil {
		return nil, DeviceError(op, "device", err)
	}
	d := &Device{Device: device, version: opened.Version(), images: map[string]driver.Library{}, kernels: map[Symbol]Kernel{}}
	devices[ordinal] = d
	return d, nil
}

// Kernels returns the kernels of symbols, loading their images if needed.
func (d *Device) Kernels(symbols []Symbol, op string) ([]Kernel, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var kernels []Kernel
	for _, symbol := range symbols {
		kernel, err := d.kernel(symbol, op)
		if err != nil {
			return nil, err
		}
		kernels = append(kernels, kernel)
	}
	return kernels, nil
}

func (d *Device) kernel(symbol Symbol, op string) (Kernel, error) {
	if kernel, found := d.kernels[symbol]; found {
		return kernel, nil
	}
	library, err := d.library(symbol.Image, op)
	if err != nil {
		return 0, err
	}
	kernel, err := library.Kernel(symbol.Name)
	if err != nil {
		return 0, DeviceError(op, symbol.Name, err)
	}
	d.kernels[symbol] = kernel
	return kernel, nil
}

// library loads an image once for the device.
func (d *Device) library(name, op string) (driver.Library, error) {
	if library := d.images[name]; library != nil {
		return library, nil
	}
	code, err := source.Image(name, d.Arch())
	var other *cuda.ArchitectureError
	if errors.As(err, &other) {
		return nil, errs.New(errs.Unsupported, op, "device", "one that this build has kernels for: "+strings.Join(other.Codes, ", "), d.Arch(),
			"build on a machine with this GPU, or with STERNWAY_CUDA_ARCHS=all")
	}
	if err != nil {
		return nil, DeviceError(op, "kernel image", err)
	}
	if code == nil {
		return nil, errs.New(errs.Unsupported, op, "device", "cpu, as this build carries no CUDA kernels", "cuda",
			"build on a machine with a GPU, or with STERNWAY_CUDA_ARCHS=all")
	}
	library, err := d.Load(code)
	if err != nil {
		return nil, d.loadError(op, err)
	}
	d.images[name] = library
	return library, nil
}

// loadError is the error for an image that failed to load: one for a driver of an older CUDA than
// the image, one for a device whose architecture is not in the image, another for any other failure
// of the driver.
func (d *Device) loadError(op string, err error) error {
	if toolkit := source.Toolkit(); d.version/1000 < toolkit {
		return errs.New(errs.Unsupported, op, "device", fmt.Sprintf("one whose driver supports CUDA %d, for which the kernels were compiled", toolkit),
			"a driver for "+CUDAVersion(d.version), `update the NVIDIA driver; device="cpu" works on every machine`)
	}
	var status *driver.Status
	if errors.As(err, &status) && status.NoImage() {
		return errs.New(errs.Unsupported, op, "device", "of an architecture in the kernel image", d.Arch(),
			"rebuild with STERNWAY_CUDA_ARCHS set to it")
	}
	return DeviceError(op, "kernel image", err)
}

// CUDAVersion is a version of CUDA in words, from [driver.Driver] Version: "CUDA 13.0" for 13000.
func CUDAVersion(version int) string {
	return fmt.Sprintf("CUDA %d.%d", version/1000, version%1000/10)
}

// DeviceError wraps an error of the driver.
func DeviceError(op, operand string, err error) error {
	e := errs.New(errs.DeviceFailure, op, operand, "accepted by the driver", err.Error(), "")
	var status *driver.Status
	if errors.As(err, &status) {
		e.Status, e.Got, e.Hint = status.Name, status.Name+" in "+status.Call, status.Advice()
	}
	return e
}
