package devices

import (
	"fmt"
	"strings"

	"github.com/google/cel-go/common/ast"
)

// longestNumeral and longestExponent bound, in characters, the text of a number. Numbers with a
// longer exponent are worked out in full: 1e-9999999 takes minutes for each device, and neither the
// cost of an expression nor an end of its context counts that.
const (
	longestNumeral  = 64
	longestExponent = 2
)

// checkNumerals tells of numbers in an expression that may take for ever to read. A text that the
// expression puts together could be any number.
func checkNumerals(expression ast.Expr) error {
	var err error
	ast.PreOrderVisit(expression, ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind || err != nil {
			return
		}
		switch call := e.AsCall(); call.FunctionName() {
		case "quantity", "isQuantity":
			for _, arg := range call.Args() {
				if err == nil {
					err = checkNumeral(call.FunctionName(), arg)
				}
			}
		}
	}))
	return err
}

func checkNumeral(function string, arg ast.Expr) error {
	value, literal := text(arg)
	switch {
	case !literal && scope{}.path(arg) == nil:
		return fmt.Errorf("puts the text for %s() together: write the number there, or an attribute of the device", function)
	case len(value) > longestNumeral:
		return fmt.Errorf("has a number of %d characters, where %d are read at most: write a shorter one", len(value), longestNumeral)
	}
	if at := strings.LastIndexAny(value, "eE"); at >= 0 {
		if exponent := strings.TrimLeft(value[at+1:], "+-"); len(exponent) > longestExponent {
			return fmt.Errorf("has the number %q, whose exponent has more than %d digits: write one that devices can have", value, longestExponent)
		}
	}
	return nil
}
