package fit

import (
	"fmt"
	"slices"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	resourceapi "k8s.io/api/resource/v1"
	apicel "k8s.io/apiserver/pkg/cel"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/lru"
)

// language is what a stock cluster's expressions may use.
var language = dracel.Features{EnableConsumableCapacity: true}

// remembered is of how many expressions the compiled form is kept. It depends on nothing but
// their text, so that all clusters share it.
const remembered = 1000

var (
	compiled = dracel.NewCache(remembered, language)
	readings = lru.New(remembered)
)

// reading is what is known of an expression without a device.
type reading struct {
	err error
	// names are the attributes that it may read; where everything is set, it may read any.
	names      []string
	everything bool
}

// Check tells why a selector's expression cannot be used: it does not compile, or costs more
// than the API server allows.
func Check(expression string) error { return read(expression).err }

// read compiles an expression as the API server does.
func read(expression string) reading {
	if known, ok := readings.Get(expression); ok {
		return known.(reading)
	}
	r := newReading(expression)
	readings.Add(expression, r)
	return r
}

func newReading(expression string) reading {
	result := dracel.GetCompiler(language).CompileCELExpression(expression, dracel.Options{})
	if result.Error != nil {
		return reading{err: fmt.Errorf("does not compile: %s", result.Error.Detail)}
	}
	if result.MaxCost > resourceapi.CELSelectorExpressionMaxCost {
		return reading{err: fmt.Errorf("may cost %d, where %d is the most that the API server allows: make it simpler", result.MaxCost, uint64(resourceapi.CELSelectorExpressionMaxCost))}
	}
	checked, issues := result.Environment.Compile(expression)
	if issues.Err() != nil {
		return reading{err: fmt.Errorf("does not compile: %w", issues.Err())}
	}
	return names(checked)
}

// names finds what an expression can read. A device's attributes are maps: a value is read by
// its name, which is a field or a constant in the text, unless the name is computed or all
// of a map is walked.
func names(checked *cel.Ast) reading {
	var r reading
	native := checked.NativeRep()
	ast.PreOrderVisit(native.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.SelectKind:
			r.names = append(r.names, e.AsSelect().FieldName())
		case ast.LiteralKind:
			if text, ok := e.AsLiteral().(types.String); ok {
				r.names = append(r.names, string(text))
			}
		case ast.CallKind:
			r.everything = r.everything || computed(native, e.AsCall())
		case ast.ComprehensionKind:
			r.everything = r.everything || walked(native, e.AsComprehension().IterRange())
		}
	}))
	return r
}

// computed tells whether a call may look up what is not in the text, or take a map as a whole.
func computed(native *ast.AST, call ast.CallExpr) bool {
	switch call.FunctionName() {
	case operators.Index, operators.OptIndex, operators.OptSelect:
		return call.Args()[1].Kind() != ast.LiteralKind
	case operators.In:
		return call.Args()[0].Kind() != ast.LiteralKind && whole(native.GetType(call.Args()[1].ID()))
	case "orValue", "hasValue":
		return false
	}
	if call.IsMemberFunction() && whole(native.GetType(call.Target().ID())) {
		return true
	}
	return slices.ContainsFunc(call.Args(), func(arg ast.Expr) bool { return whole(native.GetType(arg.ID())) })
}

// whole tells whether a value of the type has all attributes in it. Quantities and versions are
// structs to CEL, and are each the value of one attribute.
func whole(t *types.Type) bool {
	switch t.TypeName() {
	case apicel.QuantityType.TypeName(), apicel.SemverType.TypeName():
		return false
	}
	return t.Kind() == types.MapKind || t.Kind() == types.StructKind || slices.ContainsFunc(t.Parameters(), whole)
}

// walked tells whether what a comprehension goes through may be a map. A list is of values that
// were read by name, and cel.bind goes through an empty one.
func walked(native *ast.AST, over ast.Expr) bool {
	return native.GetType(over.ID()).Kind() != types.ListKind
}
