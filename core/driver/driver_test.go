package driver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A process opens libcuda once, so every story of it runs in a process of its own: this test
// program, with FAKE_STORY set.
func TestMain(m *testing.M) {
	if os.Getenv("FAKE_STORY") == "" {
		os.Exit(m.Run())
	}
	tell()
}

// tell goes through the whole interface and prints every answer.
func tell() {
	d, err := Open()
	if err != nil {
		fmt.Println("open:", err)
		return
	}
	fmt.Println("version", d.Version(), "devices", d.DeviceCount())
	device, err := d.Device(1)
	if err != nil {
		tellError("device", err)
		return
	}
	fmt.Println(device.Name(), device.Arch(), device.Multiprocessors(), device.Memory(), device.Bandwidth(), device.SharedMemory())
	library, err := device.Load([]byte("an image\x00"))
	tellError("load", err)
	kernel, err := library.Kernel("lerp_backward_map_f32")
	tellError("kernel", err)
	launch := &Launch{Grid: 5, Block: 256, Shared: 64, Stream: 3}
	launch.Put(2, 11, 1<<40)
	tellError("launch", device.Launch(kernel, launch))
	launch.Cooperative = true
	tellError("launch together", device.Launch(kernel, launch))
	if os.Getenv("FAKE_STORY") == "clusters" {
		launch.Grid, launch.Cluster = 8, 4
		fmt.Println("clusters", device.Clusters(kernel, launch))
		tellError("launch clusters", device.Launch(kernel, launch))
		return
	}
	if os.Getenv("FAKE_STORY") == "graphs" {
		tellGraphs(device, kernel)
		return
	}
	tellError("synchronize", device.Synchronize(3))
	bytes := make([]byte, 4)
	tellError("read", device.Read(bytes, 77, 3))
	fmt.Println(string(bytes))
}

// tellGraphs launches a kernel again with one thing after the other changed.
func tellGraphs(device Device, kernel Kernel) {
	launch := &Launch{Grid: 1, Block: 32}
	launch.Put(1, 0)
	for i, change := range []func(){
		func() { fmt.Println("first") }, func() { fmt.Println("same") },
		func() { fmt.Println("word"); launch.Words()[1] = 9 }, func() { fmt.Println("grid"); launch.Grid = 2 },
		func() { fmt.Println("block"); launch.Block = 64 }, func() { fmt.Println("shared"); launch.Shared = 8 },
		func() { fmt.Println("kernel"); kernel++ }, func() { fmt.Println("kernel"); kernel-- },
		func() { fmt.Println("stream"); launch.Stream = 5 }, func() { fmt.Println("stream"); launch.Stream = 0 },
	} {
		change()
		tellError(fmt.Sprint(i), device.Launch(kernel, launch))
	}
	fmt.Println("many streams")
	for stream := range uintptr(20) {
		launch.Stream = 100 + stream
		tellError("stream", device.Launch(kernel, launch))
	}
	fmt.Println("a graph that is forgotten")
	for range 1000 {
		launch.Stream = 100
		_ = device.Launch(kernel, launch)
	}
	launch.Stream = 200
	tellError("stream", device.Launch(kernel, launch))
}

func tellError(what string, err error) {
	var status *Status
	if errors.As(err, &status) {
		fmt.Printf("%s: %v (%d, %q, no image: %v)\n", what, err, status.Code, status.Advice(), status.NoImage())
	}
}

// buildLibcuda compiles testdata/libcuda.c into a folder.
func buildLibcuda(t *testing.T, flags ...string) string {
	t.Helper()
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	if _, err := exec.LookPath(compiler); err != nil {
		t.Skipf("no C compiler to build a fake libcuda with: %v", err)
	}
	folder := t.TempDir()
	arguments := append(flags, "-shared", "-fPIC", "-o", filepath.Join(folder, "libcuda.so.1"), "testdata/libcuda.c")
	text, err := exec.Command(compiler, arguments...).CombinedOutput()
	require.NoError(t, err, string(text))
	return folder
}

func story(t *testing.T, folder string, environment ...string) []string {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(append(os.Environ(), "FAKE_STORY=all", "LD_LIBRARY_PATH="+folder), environment...)
	text, err := command.CombinedOutput()
	require.NoError(t, err, string(text))
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// Launches go to the driver one by one.
const noGraphs = "FAKE_REFUSES=cuStreamIsCapturing=906"

const (
	opened  = "version 13000 devices 2"
	device1 = "Fake 41 sm_90 132 137438953472 3352320000000 232448"
)

func TestEveryCallReachesTheDriver(t *testing.T) {
	folder := buildLibcuda(t)
	require.Equal(t, []string{
		opened, device1, "load an image",
		"context 410", "kernel lerp_backward_map_f32 of library 7", "function of kernel 8",
		"attribute 8 of function 9 is 232000", "capture mode 2", "graph 20", "graph 21", "graph 22", "graph 23", "graph 24", "graph 25", "graph 26",
		"graph 27", "graph 28", "graph 29", "graph 30", "graph 31", "graph 32", "graph 33", "graph 34", "graph 35", "capture mode 0", "context 0",
		"context 410", "launch 9 grid 5,1,1 block 256,1,1 shared 64 stream 3 words 11 1099511627776", "context 0",
		"context 410", "together: launch 9 grid 5,1,1 block 256,1,1 shared 64 stream 3 words 11 1099511627776", "context 0",
		"context 410", "wait for stream 3", "context 0",
		"context 410", "read 4 bytes at 77 on stream 3", "wait for stream 3", "context 0", "xxxx",
	}, story(t, folder, noGraphs))
}

// A launch is started in a graph of its kernel and stream, which is set where it is another one
// than the last. A stream has a graph as long as there are some; those of other streams are left to
// them until they are forgotten.
func TestGraphs(t *testing.T) {
	text := strings.Join(story(t, buildLibcuda(t), "FAKE_STORY=graphs", "FAKE_CURRENT=410"), "\n")
	_, text, _ = strings.Cut(text, "first\n")
	set := func(graph, function int, rest string) string {
		return fmt.Sprintf("set graph %d of node %d to %d in 410 grid %s\n", graph, graph+100, function, rest)
	}
	start := func(graph, stream int) string { return fmt.Sprintf("start graph %d on stream %d\n", graph, stream) }
	wanted := set(21, 9, "1,1,1 block 32,1,1 shared 0 words 0") + start(21, 0) + "same\n" + start(21, 0) +
		"word\n" + set(21, 9, "1,1,1 block 32,1,1 shared 0 words 9") + start(21, 0) +
		"grid\n" + set(21, 9, "2,1,1 block 32,1,1 shared 0 words 9") + start(21, 0) +
		"block\n" + set(21, 9, "2,1,1 block 64,1,1 shared 0 words 9") + start(21, 0) +
		"shared\n" + set(21, 9, "2,1,1 block 64,1,1 shared 8 words 9") + start(21, 0) +
		"kernel\n" + set(22, 10, "2,1,1 block 64,1,1 shared 8 words 9") + start(22, 0) + "kernel\n" + start(21, 0) +
		"stream\n" + set(23, 9, "2,1,1 block 64,1,1 shared 8 words 9") + start(23, 5) + "stream\n" + start(21, 0) + "many streams\n"
	for stream := range 20 {
		if graph := 24 + stream; graph < 36 {
			wanted += set(graph, 9, "2,1,1 block 64,1,1 shared 8 words 9") + start(graph, 100+stream)
		} else {
			wanted += fmt.Sprintf("launch 9 grid 2,1,1 block 64,1,1 shared 8 stream %d words 9\n", 100+stream)
		}
	}
	wanted += "a graph that is forgotten\n" + strings.Repeat(start(24, 100), 1000) +
		set(20, 9, "2,1,1 block 64,1,1 shared 8 words 9") + start(20, 200)
	require.Equal(t, strings.Split(wanted, "\n"), strings.Split(text+"\n", "\n"))
}

// No launch is lost where there is no graph for it: the stream is captured, or the driver refuses.
func TestLaunchesWithoutGraphs(t *testing.T) {
	folder := buildLibcuda(t)
	for _, reason := range []string{
		"FAKE_CAPTURED=1", noGraphs, "FAKE_REFUSES=cuGraphInstantiateWithFlags=2", "FAKE_REFUSES=cuGraphExecKernelNodeSetParams_v2=1",
		"FAKE_REFUSES=cuGraphLaunch=700",
	} {
		text := strings.Join(story(t, folder, reason), "\n")
		require.Contains(t, text, "launch 9 grid 5,1,1 block 256,1,1 shared 64 stream 3 words 11 1099511627776\ncontext 0\n", reason)
		require.Equal(t, strings.Contains(reason, "cuGraphLaunch"), strings.Contains(text, "start graph"), reason)
	}
}

// Clusters are counted where the kernel is code for devices that have them, and are launched
// without a graph.
func TestClusters(t *testing.T) {
	folder := buildLibcuda(t)
	const (
		allowed = "attribute 14 of function 9 is 1\n"
		asked   = "clusters of 4 in a grid of 8, block 256, shared 64 of 9\n"
		started = "attribute 4: 4,1,1: launch 9 grid 8,1,1 block 256,1,1 shared 64 stream 3 words 11 1099511627776"
	)
	for _, row := range []struct{ ptx, refuses, wanted string }{
		{"90", "", allowed + asked + "clusters 31\n" + started},
		{"120", "", allowed + asked + "clusters 31\n" + started},
		{"80", "", "clusters 0\n" + started},
		{"90", "cuOccupancyMaxActiveClusters=1", allowed + asked + "clusters 0\n" + started},
		{"90", "cuLaunchKernelEx=2", allowed + asked + "clusters 31\n" + started +
			"\n" + `launch clusters: CUDA_ERROR_OUT_OF_MEMORY in cuLaunchKernelEx (2, "free device memory", no image: false)`},
	} {
		text := strings.Join(story(t, folder, "FAKE_STORY=clusters", "FAKE_CURRENT=410", "FAKE_PTX="+row.ptx, "FAKE_REFUSES="+row.refuses), "\n")
		_, text, _ = strings.Cut(text, "stream 3 words 11 1099511627776\n") // of the launch together
		require.Equal(t, row.wanted, text, "%+v", row)
	}
}

// The context of the device is made current where another one is, and that one is put back; where
// it is current, nothing is done.
func TestContextOfTheCaller(t *testing.T) {
	folder := buildLibcuda(t)
	require.Contains(t, strings.Join(story(t, folder, noGraphs, "FAKE_CURRENT=55"), "\n"),
		"context 410\nlaunch 9 grid 5,1,1 block 256,1,1 shared 64 stream 3 words 11 1099511627776\ncontext 55\n")
	require.Contains(t, strings.Join(story(t, folder, "FAKE_CURRENT=55"), "\n"), "context 410\nset graph 20 of node 120 to 9 in 410 "+
		"grid 5,1,1 block 256,1,1 shared 64 words 11 1099511627776\nstart graph 20 on stream 3\ncontext 55\n")
	for _, graphs := range []string{"FAKE_CURRENT=410", noGraphs} {
		require.NotContains(t, strings.Join(story(t, folder, graphs, "FAKE_CURRENT=410"), "\n"), "context")
	}
}

// A refusal comes back with its name and what was being done, and leaves the context of the caller
// in place.
func TestRefusals(t *testing.T) {
	folder := buildLibcuda(t)
	for _, row := range []struct{ refuses, wanted string }{
		{"cuInit=100", "open: CUDA_ERROR_NO_DEVICE"},
		{"cuInit=999", "open: a driver that does not start"},
		{"cuDeviceGetCount=100", "version 13000 devices 0"},
		{"cuDevicePrimaryCtxRetain=2", `device: CUDA_ERROR_OUT_OF_MEMORY in cuDevicePrimaryCtxRetain (2, "free device memory", no image: false)`},
		{"cuLibraryLoadData=209", `load: CUDA_ERROR_NO_BINARY_FOR_GPU in cuLibraryLoadData (209, "", no image: true)`},
		{"cuLibraryGetKernel=999", "context 0\n" + `kernel: CUDA status 999 in cuLibraryGetKernel lerp_backward_map_f32 (999, "", no image: false)`},
		{"cuLaunchKernel=2", "context 0\n" + `launch: CUDA_ERROR_OUT_OF_MEMORY in cuLaunchKernel (2, "free device memory", no image: false)`},
		{"cuLaunchCooperativeKernel=2", `launch together: CUDA_ERROR_OUT_OF_MEMORY in cuLaunchCooperativeKernel (2, "free device memory", no image: false)`},
		{"cuMemcpyDtoHAsync_v2=2", "context 0\n" + `read: CUDA_ERROR_OUT_OF_MEMORY in cuMemcpyDtoHAsync (2, "free device memory", no image: false)`},
		{"cuStreamSynchronize=700", "context 0\nsynchronize: CUDA_ERROR_ILLEGAL_ADDRESS in cuStreamSynchronize (700, " +
			`"an earlier kernel of this process failed and its CUDA context is lost: restart the process, ` +
			`with CUDA_LAUNCH_BLOCKING=1 and STERNWAY_CHECK=1 to find the kernel", no image: false)`},
	} {
		require.Contains(t, strings.Join(story(t, folder, "FAKE_CAPTURED=1", "FAKE_REFUSES="+row.refuses), "\n")+"\n", row.wanted+"\n", row.refuses)
	}
}

func TestOldDriver(t *testing.T) {
	require.Equal(t, []string{"open: an NVIDIA driver of CUDA 11.4, older than CUDA 12.0 (no cuStreamSynchronize)"}, story(t, buildLibcuda(t, "-DOLD")))
}

// On this machine, Open either works or says in words what is missing, as often as it is asked.
func TestOpenHere(t *testing.T) {
	for range 2 {
		d, err := Open()
		if err == nil {
			require.GreaterOrEqual(t, d.Version(), 12000)
			require.GreaterOrEqual(t, d.DeviceCount(), 0)
			continue
		}
		require.Regexp(t, `^(no NVIDIA driver|an NVIDIA driver of CUDA|a driver that does not start|CUDA_ERROR_)`, err.Error())
		require.Nil(t, d)
	}
}

func TestLaunchWords(t *testing.T) {
	var l Launch
	require.Empty(t, l.Words())
	l.Put(1, 2)
	l.Put(3)
	require.Equal(t, []uint64{1, 2, 3}, l.Words())
	l.Reset()
	require.Empty(t, l.Words())
	l.Put(4)
	require.Equal(t, []uint64{4}, l.Words())
	require.Zero(t, testing.AllocsPerRun(100, func() { l.Reset(); l.Put(5, 6, 7) }))
}

func TestAdvice(t *testing.T) {
	for _, row := range []struct {
		code  int
		words string // part of the advice; empty: there is none
	}{
		{2, "memory"}, {700, "restart"}, {710, "earlier kernel"}, {719, "STERNWAY_CHECK"}, {900, "capture"}, {906, "capture"}, {1, ""}, {209, ""}, {999, ""},
	} {
		advice := (&Status{Code: row.code}).Advice()
		require.Contains(t, advice, row.words)
		require.Equal(t, row.words == "", advice == "", "advice for %d: %q", row.code, advice)
	}
	require.Equal(t, "CUDA_ERROR_X in cuY", (&Status{1, "CUDA_ERROR_X", "cuY"}).Error())
	require.True(t, (&Status{Code: 209}).NoImage())
	require.True(t, (&Status{Code: 222}).NoImage())
	require.False(t, (&Status{Code: 700}).NoImage())
}
