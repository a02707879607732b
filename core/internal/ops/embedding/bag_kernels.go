package embedding

import "github.com/sternway/sternway/core/internal/launch"

// This file names the kernels of embedding bags.

// Indices of bagKernels.
const (
	symbolSumSorted = iota
	symbolSumArgmax
	symbolLongRows
	symbolDots
	symbolSingleLaunch
	symbolClear
	symbolKeys
	symbolCount
	symbolScatter
	symbolSort
	symbolArgmax
	symbolCollect
	symbolBounds
	symbolUpdateSorted
	symbolUpdateArgmax
	symbolUpdateLongRows
	symbolAdvance
)

// bagKernels are the kernels of a plan: their names, whether there is one for each dtype, and
// whether they write only the rows that have entries.
var bagKernels = []struct {
	name                 string
	byDType, onlyEntries bool
}{
	symbolSumSorted:      {KernelSorted, true, false},
	symbolSumArgmax:      {"sorted_argmax", true, false},
	symbolLongRows:       {"long_rows", true, false},
	symbolDots:           {"sample_weights", true, false},
	symbolSingleLaunch:   {KernelSingleLaunch, true, false},
	symbolClear:          {"clear", false, false},
	symbolKeys:           {"keys", false, false},
	symbolCount:          {"count", false, false},
	symbolScatter:        {"scatter", false, false},
	symbolSort:           {"sort", false, false},
	symbolArgmax:         {"argmax", false, false},
	symbolCollect:        {"collect", false, false},
	symbolBounds:         {"bounds", false, false},
	symbolUpdateSorted:   {KernelSorted, true, true},
	symbolUpdateArgmax:   {"sorted_argmax", true, true},
	symbolUpdateLongRows: {"long_rows", true, true},
	symbolAdvance:        {"advance", false, true},
}

const updateImage = "embedding_update" // of the kernels that write only the rows that have entries

// Symbols implements ops.Program. Plans that write all rows do not load the kernels for rows that
// have entries, which come last, so that the indices of the others hold.
func (p *BagProgram) Symbols() (list []launch.Symbol) {
	for _, kernel := range bagKernels {
		image, family := embeddingBag.Image, embeddingBag.Name
		if kernel.onlyEntries && !p.writesOnlyEntries() {
			continue
		}
		if kernel.onlyEntries {
			image, family = updateImage, updateImage
		}
		name := family + "_" + kernel.name
		if kernel.byDType {
			name += "_" + p.DType.Suffix()
		}
		list = append(list, launch.Symbol{Image: image, Name: name})
	}
	return list
}
