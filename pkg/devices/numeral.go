package devices

import (
	"fmt"
	"strings"

	"github.com/google/cel-go/common/ast"
)

// longestNumeral and longestExponent bound the text of a number in characters. The parser of quantities
// expands exponents: 1e-9999999 takes minutes per device, and neither CEL's cost nor a context stops it.
const (
	longestNumeral  = 64
	longestExponent = 2
)

// checkNumerals returns an error for numbers that may take too long to parse. A text that the expression
// computes could be any number.
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
