package core

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Scalar is a float64 that crosses JSON whole: NaN and the infinities are the strings "nan", "inf" and "-inf".
type Scalar float64

// MarshalJSON writes a number, or one of the three strings.
func (s Scalar) MarshalJSON() ([]byte, error) {
	if v := float64(s); math.IsNaN(v) || math.IsInf(v, 0) {
		text := strconv.FormatFloat(v, 'g', -1, 64)
		return json.Marshal(map[string]string{"NaN": "nan", "+Inf": "inf", "-Inf": "-inf"}[text])
	}
	return json.Marshal(float64(s))
}

// UnmarshalJSON reads a number, or one of the three strings.
func (s *Scalar) UnmarshalJSON(text []byte) error {
	var word string
	if json.Unmarshal(text, &word) == nil {
		v, known := map[string]float64{"nan": math.NaN(), "inf": math.Inf(1), "-inf": math.Inf(-1)}[word]
		if !known {
			return fmt.Errorf("%q is not a number", clip(word))
		}
		*s = Scalar(v)
		return nil
	}
	return json.Unmarshal(text, (*float64)(s))
}

// checkShape refuses a shape that no tensor can have.
func checkShape(op, field string, shape []int64) error {
	if len(shape) > MaxRank {
		return refuse(Unsupported, op, field, fmt.Sprintf("of rank 0 to %d", MaxRank), fmt.Sprint("rank ", len(shape)), "")
	}
	for _, n := range shape {
		if n < 0 {
			return refuse(InvalidProblem, op, field, "made of extents that are not negative", shapeText(shape), "")
		}
	}
	if n, ok := product(shape); !ok || n > math.MaxInt64/64 { // so that no number of bytes overflows
		return refuse(InvalidProblem, op, field, "of at most 2^57 elements", shapeText(shape), "")
	}
	return nil
}

// checkElement refuses a dtype that has no row in the families' tables.
func checkElement(op, field string, d DType, allowed []DType) error {
	if !slices.Contains(allowed, d) {
		return refuse(Unsupported, op, field, oneOf(allowed), d.String(), "")
	}
	return nil
}

// checkBroadcast refuses a shape that does not broadcast to another.
func checkBroadcast(op, field string, shape, to []int64) error {
	if err := checkShape(op, field, shape); err != nil {
		return err
	}
	lead := len(to) - len(shape)
	for d := range shape {
		if lead < 0 || shape[d] != 1 && shape[d] != to[lead+d] {
			return refuse(InvalidProblem, op, field, "a shape that broadcasts to "+shapeText(to), shapeText(shape), "")
		}
	}
	if lead < 0 {
		return refuse(InvalidProblem, op, field, "a shape that broadcasts to "+shapeText(to), shapeText(shape), "")
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// checkCounts refuses what is too many for the 32 bits in which a GPU numbers rows, bags and positions, with one to spare.
func checkCounts(op string, fields []string, counts ...int64) error {
	for i, n := range counts {
		if n >= math.MaxInt32 {
			return refuse(Unsupported, op, fields[i], fmt.Sprintf("less than %d on a GPU", math.MaxInt32), fmt.Sprint(n), "the CPU has no such limit")
		}
	}
	return nil
}

// checkPadding refuses a padding_idx that is no row.
func checkPadding(op string, p *int64, rows int64) error {
	if p != nil && (*p < -rows || *p >= rows) {
		return refuse(InvalidProblem, op, "padding_idx", fmt.Sprintf("in [%d, %d)", -rows, rows), fmt.Sprint(*p), "")
	}
	return nil
}

// paddingRow is padding_idx counted from the start, or -1 where there is none.
func paddingRow(p *int64, rows int64) int64 {
	switch {
	case p == nil:
		return -1
	case *p < 0:
		return *p + rows
	}
	return *p
}

// refuseIndex refuses an index that is no row.
func refuseIndex(op, operand, place string, value, rows int64) *Error {
	return refuse(InvalidProblem, op, operand, fmt.Sprintf("in [0, %d)", rows), fmt.Sprintf("%d at %s", value, place), "")
}
