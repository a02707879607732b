package coretest

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/cuda"
)

// FakeCUDA is a driver with devices that keep a record of what they are asked to do.
type FakeCUDA struct {
	Devices   int
	NumSMs    int
	Shared    int                        // bytes that a block can have; 0: 227 kB
	Bandwidth int64                      // bytes in a second
	Bare      bool                       // the package was built without kernels
	Built     string                     // the package was built for this architecture, and the device has another
	Missing   error                      // of the whole driver
	Refusals  map[string]error           // by call: device, load, kernel, launch, synchronize
	Exports   map[string][]string        // symbols by image; nil: whatever is asked for
	Clusters  func(l *driver.Launch) int // that are on a device at once; nil: it has none
	Arch      string                     // of devices; "": sm_90
	CUDA      int                        // the version that the driver supports; 0: 13000, for which the kernels are
	Body      func(symbol string, l *driver.Launch)
	Memory    map[uintptr][]byte // what a read finds, by address

	Loaded   []string
	Symbols  []string
	Launches []FakeLaunch
	Waited   []uintptr
	Reads    []uintptr
}

// FakeLaunch is a recorded launch.
type FakeLaunch struct {
	Symbol              string
	Grid, Block, Shared uint32
	Stream              uintptr
	Cluster             uint32
	Cooperative         bool
	Words               []uint64
}

// Install puts the fake in the place of libcuda, and the names of images in the place of their
// code.
func (f *FakeCUDA) Install(t testing.TB) *FakeCUDA {
	open := func() (driver.Driver, error) {
		if f.Missing != nil {
			return nil, f.Missing
		}
		return f, nil
	}
	image := func(name, _ string) ([]byte, error) {
		if f.Bare {
			return nil, nil
		}
		if f.Built != "" {
			return nil, &cuda.ArchitectureError{Codes: []string{f.Built}}
		}
		return []byte(name), nil
	}
	t.Cleanup(launch.Replace(launch.Source{Open: open, Image: image, Toolkit: func() int { return 13 }}))
	return f
}

// Version implements driver.Driver.
func (f *FakeCUDA) Version() int { return cmp.Or(f.CUDA, 13000) }

// DeviceCount implements driver.Driver.
func (f *FakeCUDA) DeviceCount() int { return f.Devices }

// Device implements driver.Driver.
func (f *FakeCUDA) Device(int) (driver.Device, error) {
	if err := f.Refusals["device"]; err != nil {
		return nil, err
	}
	return fakeDevice{f}, nil
}

type fakeDevice struct{ *FakeCUDA }

// Name implements driver.Device.
func (d fakeDevice) Name() string { return "Fake" }

// Arch implements driver.Device.
func (d fakeDevice) Arch() string { return cmp.Or(d.FakeCUDA.Arch, "sm_90") }

// Multiprocessors implements driver.Device.
func (d fakeDevice) Multiprocessors() int { return d.FakeCUDA.NumSMs }

// Memory implements driver.Device.
func (d fakeDevice) Memory() int64 { return 1 << 37 }

// Bandwidth implements driver.Device.
func (d fakeDevice) Bandwidth() int64 { return d.FakeCUDA.Bandwidth }

// SharedMemory implements driver.Device.
func (d fakeDevice) SharedMemory() int {
	if d.FakeCUDA.Shared > 0 {
		return d.FakeCUDA.Shared
	}
	return 227 << 10
}

// Load implements driver.Device.
func (d fakeDevice) Load(image []byte) (driver.Library, error) {
	d.FakeCUDA.Loaded = append(d.FakeCUDA.Loaded, string(image))
	return fakeLibrary{d, string(image)}, d.FakeCUDA.Refusals["load"]
}

type fakeLibrary struct {
	device fakeDevice
	image  string
}

// Kernel implements driver.Library.
func (l fakeLibrary) Kernel(symbol string) (driver.Kernel, error) {
	if l.device.Exports != nil && !slices.Contains(l.device.Exports[l.image], symbol) {
		return 0, &driver.Status{Code: 500, Name: "CUDA_ERROR_NOT_FOUND", Call: "cuLibraryGetKernel " + symbol}
	}
	l.device.Symbols = append(l.device.Symbols, symbol)
	return driver.Kernel(len(l.device.Symbols)), l.device.Refusals["kernel"]
}

// Launch implements driver.Device.
func (d fakeDevice) Launch(kernel driver.Kernel, l *driver.Launch) error {
	if kernel == 0 || int(kernel) > len(d.FakeCUDA.Symbols) {
		return fmt.Errorf("kernel %d was never loaded", kernel)
	}
	symbol := d.FakeCUDA.Symbols[kernel-1]
	if d.FakeCUDA.Body != nil {
		d.FakeCUDA.Body(symbol, l)
	} else {
		d.FakeCUDA.Launches = append(d.FakeCUDA.Launches, FakeLaunch{symbol, l.Grid, l.Block, l.Shared, l.Stream, l.Cluster, l.Cooperative, slices.Clone(l.Words())})
	}
	return d.FakeCUDA.Refusals["launch"]
}

// Clusters implements driver.Device.
func (d fakeDevice) Clusters(_ driver.Kernel, l *driver.Launch) int {
	if d.FakeCUDA.Clusters == nil {
		return 0
	}
	return d.FakeCUDA.Clusters(l)
}

// Synchronize implements driver.Device.
func (d fakeDevice) Synchronize(stream uintptr) error {
	d.FakeCUDA.Waited = append(d.FakeCUDA.Waited, stream)
	return d.FakeCUDA.Refusals["synchronize"]
}

// Read implements driver.Device.
func (d fakeDevice) Read(to []byte, from, _ uintptr) error {
	if d.FakeCUDA.Refusals["read"] == nil {
		copy(to, d.FakeCUDA.Memory[from])
	}
	d.FakeCUDA.Reads = append(d.FakeCUDA.Reads, from)
	return d.FakeCUDA.Refusals["read"]
}

// ExportsOfKernels are the symbols of every image.
func ExportsOfKernels(t testing.TB) map[string][]string {
	exports := map[string][]string{}
	for _, name := range CudaImages(t) {
		exports[name] = ExportedSymbols(t, name)
	}
	return exports
}
