package cuda

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// visible are the folders whose headers the files of a folder may include, beside their own. It has
// no cycle: an idea is explained by those before it. Files of scan/ have rows of their own:
// args.gen.cuh is below all folders, sequences.cuh below kinds/, records.cuh joins two of them and
// export.cuh all.
var visible = map[string][]string{
	"common":             {},
	"elementwise":        {"common"},
	"rope":               {"common"},
	"selective":          {"common"},
	"embedding":          {"common"},
	"scan/args.gen.cuh":  {"common"},
	"scan/state":         {"common", "scan/args.gen.cuh"},
	"scan/sequences.cuh": {"common", "scan/state"},
	"scan/tile":          {"common", "scan/state"},
	"scan/pipeline":      {"common", "scan/state"},
	"scan/row":           {"common", "scan/state", "scan/tile", "scan/pipeline"},
	"scan/column":        {"common", "scan/state", "scan/tile", "scan/pipeline"},
	"scan/sums.cuh":      {"common", "scan/args.gen.cuh"},
	"scan/kinds":         {"common", "scan/state", "scan/sequences.cuh", "scan/tile"},
	"scan/records.cuh":   {"scan/row", "scan/column"},
	"scan/export.cuh":    {"common", "scan/row", "scan/column", "scan/records.cuh"},
	"scan":               {"scan/export.cuh", "scan/kinds", "scan/sequences.cuh", "scan/sums.cuh"}, // the .cu files
}

// Every include is written from this folder, names a file, and runs the way that `visible` says.
func TestIncludesRunOneWay(t *testing.T) {
	include := regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include[ \t]*"([^"]*)"`)
	includes := 0
	require.NoError(t, fs.WalkDir(os.DirFS("."), ".", func(file string, _ fs.DirEntry, err error) error {
		if ext := path.Ext(file); ext != ".cu" && ext != ".cuh" {
			return err
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		from := layer(file)
		require.Contains(t, visible, from, "%s is in a folder without a row", file)
		for _, match := range include.FindAllStringSubmatch(string(text), -1) {
			includes++
			require.FileExists(t, match[1], "%s includes it by its path from cuda/", file)
			to := layer(match[1])
			require.True(t, to == from || slices.Contains(visible[from], to), "%s (%s) must not include %s (%s)", file, from, match[1], to)
		}
		return nil
	}))
	require.Positive(t, includes)
}

// layer is the row of `visible` that a file belongs to: its own if it has one, or else that of its
// folder.
func layer(file string) string {
	if _, own := visible[file]; own {
		return file
	}
	return path.Dir(file)
}
