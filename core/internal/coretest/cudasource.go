package coretest

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// CudaSource is the file <image>.cu below cuda/ after the preprocessor, without the headers of the
// CUDA toolkit. So the tests read which symbols the kernels export and how their argument is laid
// out where it is written, on machines without nvcc as well.
func CudaSource(t testing.TB, image string) string {
	t.Helper()
	sourceMu.Lock()
	defer sourceMu.Unlock()
	if text, known := sources[image]; known {
		return text
	}
	folder := t.TempDir()
	toolkit := regexp.MustCompile(`(?m)^\s*#\s*include\s*<.*$`)
	source := ""
	for _, file := range cudaFiles(t) {
		text, err := os.ReadFile(filepath.Join(cudaFolder(), file))
		require.NoError(t, err)
		copied := filepath.Join(folder, file)
		require.NoError(t, os.MkdirAll(filepath.Dir(copied), 0o700))
		require.NoError(t, os.WriteFile(copied, toolkit.ReplaceAll(text, nil), 0o600))
		if filepath.Base(file) == image+".cu" {
			source = copied
		}
	}
	require.NotEmpty(t, source, "no %s.cu", image)
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	text, err := exec.Command(compiler, "-E", "-P", "-x", "c++", "-I", folder, source).Output()
	require.NoError(t, err, "the C compiler that built this package preprocesses the kernels")
	sources[image] = string(text)
	return sources[image]
}

var (
	sourceMu sync.Mutex
	sources  = map[string]string{}
)

// cudaFolder is the folder of the CUDA sources, whatever package is tested.
func cudaFolder() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "..", "cuda")
}

// cudaFiles are the CUDA sources and headers, by their paths from there.
func cudaFiles(t testing.TB) (files []string) {
	t.Helper()
	require.NoError(t, fs.WalkDir(os.DirFS(cudaFolder()), ".", func(path string, _ fs.DirEntry, err error) error {
		if ext := filepath.Ext(path); ext == ".cu" || ext == ".cuh" {
			files = append(files, path)
		}
		return err
	}))
	return files
}

// CudaImages are the images that have a source.
func CudaImages(t testing.TB) (names []string) {
	t.Helper()
	for _, file := range cudaFiles(t) {
		if name, found := strings.CutSuffix(filepath.Base(file), ".cu"); found {
			names = append(names, name)
		}
	}
	require.NotEmpty(t, names)
	return names
}

var exported = regexp.MustCompile(`extern "C" __global__ void\s+(?:__launch_bounds__\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*)?(\w+)\s*\(`)

// ExportedSymbols are the kernels of an image.
func ExportedSymbols(t testing.TB, image string) (symbols []string) {
	t.Helper()
	for _, match := range exported.FindAllStringSubmatch(CudaSource(t, image), -1) {
		symbols = append(symbols, match[1])
	}
	require.NotEmpty(t, symbols, "cuda/%s.cu exports nothing", image)
	return symbols
}

// WordsOf is the word at which each field of the argument of a kernel begins, and the number of
// words.
func WordsOf[T any]() (at map[string]int, size int) {
	at = map[string]int{}
	var visit func(t reflect.Type, from uintptr)
	visit = func(t reflect.Type, from uintptr) {
		for i := range t.NumField() {
			field := t.Field(i)
			at[field.Name] = int((from + field.Offset) / 8)
			if field.Type.Kind() == reflect.Struct {
				visit(field.Type, from+field.Offset)
			}
		}
	}
	t := reflect.TypeFor[T]()
	visit(t, 0)
	return at, int(t.Size() / 8)
}
