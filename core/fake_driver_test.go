package core

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/launch"
)

// fakeCUDA is a driver with devices that keep a record of what they are asked to do.
type fakeCUDA struct {
	devices   int
	units     int
	shared    int                        // bytes that a block can have; 0: 227 kB
	bandwidth int64                      // bytes in a second
	bare      bool                       // the package was built without kernels
	missing   error                      // of the whole driver
	refusals  map[string]error           // by call: device, load, kernel, launch, synchronize
	exports   map[string][]string        // symbols by image; nil: whatever is asked for
	clusters  func(l *driver.Launch) int // that are on a device at once; nil: it has none
	arch      string                     // of devices; "": sm_90
	body      func(symbol string, l *driver.Launch)
	memory    map[uintptr][]byte // what a read finds, by address

	loaded   []string
	symbols  []string
	launches []fakeLaunch
	waited   []uintptr
	reads    []uintptr
}

type fakeLaunch struct {
	symbol              string
	grid, block, shared uint32
	stream              uintptr
	cluster             uint32
	together            bool
	words               []uint64
}

// install puts the fake in the place of libcuda, and the names of images in the place of their code.
func (f *fakeCUDA) install(t testing.TB) *fakeCUDA {
	open := func() (driver.Driver, error) {
		if f.missing != nil {
			return nil, f.missing
		}
		return f, nil
	}
	image := func(name, _ string) ([]byte, error) {
		if f.bare {
			return nil, nil
		}
		return []byte(name), nil
	}
	t.Cleanup(launch.Replace(launch.Source{Open: open, Image: image}))
	return f
}

func (f *fakeCUDA) Version() int     { return 13000 }
func (f *fakeCUDA) DeviceCount() int { return f.devices }

func (f *fakeCUDA) Device(int) (driver.Device, error) {
	if err := f.refusals["device"]; err != nil {
		return nil, err
	}
	return (*fakeDevice)(f), nil
}

type fakeDevice fakeCUDA

func (d *fakeDevice) Name() string         { return "Fake" }
func (d *fakeDevice) Arch() string         { return cmp.Or(d.arch, "sm_90") }
func (d *fakeDevice) Multiprocessors() int { return d.units }
func (d *fakeDevice) Memory() int64        { return 1 << 37 }
func (d *fakeDevice) Bandwidth() int64     { return d.bandwidth }
func (d *fakeDevice) SharedMemory() int {
	if d.shared > 0 {
		return d.shared
	}
	return 227 << 10
}

func (d *fakeDevice) Load(image []byte) (driver.Library, error) {
	d.loaded = append(d.loaded, string(image))
	return fakeLibrary{d, string(image)}, d.refusals["load"]
}

type fakeLibrary struct {
	device *fakeDevice
	image  string
}

func (l fakeLibrary) Kernel(symbol string) (driver.Kernel, error) {
	if l.device.exports != nil && !slices.Contains(l.device.exports[l.image], symbol) {
		return 0, &driver.Status{Code: 500, Name: "CUDA_ERROR_NOT_FOUND", Call: "cuLibraryGetKernel " + symbol}
	}
	l.device.symbols = append(l.device.symbols, symbol)
	return driver.Kernel(len(l.device.symbols)), l.device.refusals["kernel"]
}

func (d *fakeDevice) Launch(kernel driver.Kernel, l *driver.Launch) error {
	if kernel == 0 || int(kernel) > len(d.symbols) {
		return fmt.Errorf("kernel %d was never loaded", kernel)
	}
	symbol := d.symbols[kernel-1]
	if d.body != nil {
		d.body(symbol, l)
	} else {
		d.launches = append(d.launches, fakeLaunch{symbol, l.Grid, l.Block, l.Shared, l.Stream, l.Cluster, l.Together, slices.Clone(l.Words())})
	}
	return d.refusals["launch"]
}

func (d *fakeDevice) Clusters(_ driver.Kernel, l *driver.Launch) int {
	if d.clusters == nil {
		return 0
	}
	return d.clusters(l)
}

func (d *fakeDevice) Synchronize(stream uintptr) error {
	d.waited = append(d.waited, stream)
	return d.refusals["synchronize"]
}

func (d *fakeDevice) Read(to []byte, from, _ uintptr) error {
	if d.refusals["read"] == nil {
		copy(to, d.memory[from])
	}
	d.reads = append(d.reads, from)
	return d.refusals["read"]
}

// exportsOfKernels are the symbols of every image.
func exportsOfKernels(t testing.TB) map[string][]string {
	exports := map[string][]string{}
	for _, name := range cudaImages(t) {
		exports[name] = exportedSymbols(t, name)
	}
	return exports
}
