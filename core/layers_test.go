package core_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// layers are the packages below core, lowest first. A package imports lower layers alone; packages
// of one layer do not know each other.
var layers = [][]string{
	{"driver", "internal/errs", "internal/num", "internal/threads", "internal/ops/scan/operand"},
	{"internal/tensor"},
	{"internal/cpu"},
	{"internal/launch", "internal/ops/scan/host"}, // scans on the CPU do not know CUDA launches
	{"internal/ops", "internal/ops/scan/gpu"},
	{"internal/ops/elementwise", "internal/ops/embedding", "internal/ops/rope", "internal/ops/scan", "internal/ops/selective"},
	{"."},
	{"internal/generate"}, // writes files of other languages
	{"internal/coretest"}, // what tests share
}

func TestImportsGoDown(t *testing.T) {
	level := map[string]int{}
	for i, packages := range layers {
		for _, p := range packages {
			level[p] = i
		}
	}
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		from, known := level[filepath.ToSlash(filepath.Dir(path))]
		require.True(t, known, "%s is in a package that has no layer", path)
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			if below, ours := strings.CutPrefix(imported, "github.com/sternway/sternway/core/"); ours {
				require.Less(t, level[below], from, "%s imports %s", path, below)
			}
		}
		return nil
	}))
}
