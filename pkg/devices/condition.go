package devices

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/parser"
)

// parse expands no macros, so that an expression can be printed again as it was written.
var parse = sync.OnceValues(func() (*parser.Parser, error) {
	return parser.NewParser(parser.Macros(), parser.EnableOptionalSyntax(true),
		parser.EnableIdentEscapeSyntax(true), parser.ExpressionSizeCodePointLimit(math.MaxInt32))
})

// Condition is one operand of the && that make up a selector.
type Condition struct {
	// Text is for people. Expression includes the bindings, so it can be evaluated alone.
	Text, Expression string
	// Reads are the fields of a device that it reads, in the order of the text.
	Reads []Field
	// Quantities are the arguments of quantity(), Words the other strings.
	Quantities, Words []string
}

// Field is a part of a device.
type Field struct {
	Section Section
	// Domain and Name are those of an attribute or a capacity.
	Domain, Name string
}

// Section is a field of the CEL variable device.
type Section string

// Sections. SectionDriver and SectionShared have neither domain nor name.
const (
	SectionDriver     Section = "driver"
	SectionShared     Section = "allowMultipleAllocations"
	SectionAttributes Section = "attributes"
	SectionCapacity   Section = "capacity"
)

// read splits an expression into conditions. An expression that it cannot split is one condition that
// may read everything.
func read(expression string) *Selector {
	whole := &Selector{Everything: true, Conditions: []Condition{{Text: expression, Expression: expression}}}
	p, err := parse()
	if err != nil {
		return whole
	}
	tree, problems := p.Parse(common.NewTextSource(expression))
	if problems != nil && len(problems.GetErrors()) > 0 {
		return whole
	}
	if whole.Err = checkNumerals(tree.Expr()); whole.Err != nil {
		return whole
	}
	w := &walker{Selector: &Selector{}, info: tree.SourceInfo()}
	w.split(tree.Expr(), scope{}, func(body string) string { return body })
	if w.failed || len(w.Conditions) == 0 {
		return whole
	}
	return w.Selector
}

// scope maps variables of cel.bind to paths from the device.
type scope map[string][]string

// walker reads an expression.
type walker struct {
	*Selector
	info   *ast.SourceInfo
	failed bool
	// at is the current condition.
	at Condition
}

// split descends through && and cel.bind. around wraps a part in its bindings again.
func (w *walker) split(e ast.Expr, names scope, around func(string) string) {
	if e.Kind() == ast.CallKind {
		call := e.AsCall()
		if call.FunctionName() == operators.LogicalAnd {
			for _, arg := range call.Args() {
				w.split(arg, names, around)
			}
			return
		}
		if variable, init, body, ok := binding(e); ok {
			value := w.print(init)
			w.split(body, w.bind(variable, init, names), func(part string) string {
				return around(fmt.Sprintf("cel.bind(%s, %s, %s)", variable, value, part))
			})
			return
		}
	}
	text := w.print(e)
	w.at = Condition{Text: text, Expression: around(text)}
	w.read(e, names)
	w.Conditions = append(w.Conditions, w.at)
}

func (w *walker) print(e ast.Expr) string {
	// One line: the text becomes part of sentences.
	text, err := parser.Unparse(e, w.info, parser.WrapOnColumn(math.MaxInt32))
	if err != nil {
		w.failed = true
	}
	return text
}

// binding returns the parts of cel.bind(variable, init, body).
func binding(e ast.Expr) (variable string, init, body ast.Expr, ok bool) {
	if e.Kind() != ast.CallKind {
		return "", nil, nil, false
	}
	call := e.AsCall()
	args := call.Args()
	if !call.IsMemberFunction() || call.FunctionName() != "bind" || len(args) != 3 ||
		call.Target().Kind() != ast.IdentKind || call.Target().AsIdent() != "cel" || args[0].Kind() != ast.IdentKind {
		return "", nil, nil, false
	}
	return args[0].AsIdent(), args[1], args[2], true
}

// bind resolves the value in the outer scope, because a variable may hide one of the same name. Fields
// that a value other than a path reads belong to no condition.
func (w *walker) bind(variable string, value ast.Expr, names scope) scope {
	inner := maps.Clone(names)
	inner[variable] = names.path(value)
	if inner[variable] == nil {
		before := w.at
		w.read(value, names)
		w.at = before
	}
	return inner
}

// path returns the path of an expression from the device; nil: it has none.
func (s scope) path(e ast.Expr) []string {
	switch e.Kind() {
	case ast.IdentKind:
		if path, bound := s[e.AsIdent()]; bound {
			return path
		}
		if e.AsIdent() == "device" {
			return []string{"device"}
		}
	case ast.SelectKind:
		return join(s.path(e.AsSelect().Operand()), e.AsSelect().FieldName())
	case ast.CallKind:
		call := e.AsCall()
		switch call.FunctionName() {
		case operators.Index, operators.OptIndex, operators.OptSelect:
			if key, ok := text(call.Args()[1]); ok {
				return join(s.path(call.Args()[0]), key)
			}
		}
	}
	return nil
}

func join(path []string, step string) []string {
	if path == nil {
		return nil
	}
	return append(slices.Clone(path), step)
}

// text returns the value of a string literal.
func text(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	value, ok := e.AsLiteral().(types.String)
	return string(value), ok
}

// read collects the fields that an expression reads. It reads everything if it computes a name or uses
// a map as a whole. It notes names outside of paths, too: a macro may have the device in a variable.
func (w *walker) read(e ast.Expr, names scope) {
	if path := names.path(e); path != nil {
		if f, ok := fieldOf(path); ok {
			w.add(f)
			return
		}
		w.Everything = w.Everything || len(path) < pathLength
	}
	switch e.Kind() {
	case ast.SelectKind:
		w.Names = append(w.Names, e.AsSelect().FieldName())
		w.read(e.AsSelect().Operand(), names)
	case ast.ListKind:
		w.readAll(e.AsList().Elements(), names)
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			w.readAll([]ast.Expr{entry.AsMapEntry().Key(), entry.AsMapEntry().Value()}, names)
		}
	case ast.StructKind:
		for _, entry := range e.AsStruct().Fields() {
			w.read(entry.AsStructField().Value(), names)
		}
	case ast.LiteralKind:
		if word, ok := text(e); ok {
			w.Names = append(w.Names, word)
			w.at.Words = append(w.at.Words, word)
		}
	case ast.CallKind:
		w.readCall(e, names)
	}
}

func (w *walker) readAll(all []ast.Expr, names scope) {
	for _, e := range all {
		w.read(e, names)
	}
}

func (w *walker) readCall(e ast.Expr, names scope) {
	if variable, init, body, ok := binding(e); ok {
		w.read(body, w.bind(variable, init, names))
		return
	}
	call := e.AsCall()
	args := call.Args()
	switch {
	case call.FunctionName() == operators.In && len(args) == 2:
		// "name" in device.attributes["domain"]
		if key, ok := text(args[0]); ok {
			if f, ok := fieldOf(join(names.path(args[1]), key)); ok {
				w.add(f)
				return
			}
		}
	case call.FunctionName() == "quantity" && len(args) == 1:
		if value, ok := text(args[0]); ok {
			w.at.Quantities = append(w.at.Quantities, value)
			return
		}
	case call.FunctionName() == "semver" && len(args) > 0:
		if _, ok := text(args[0]); ok {
			return
		}
	}
	if call.IsMemberFunction() {
		w.read(call.Target(), names)
	}
	w.readAll(args, names)
}

func (w *walker) add(f Field) {
	if f.Section == SectionAttributes {
		w.Names = append(w.Names, f.Name)
	}
	if !slices.Contains(w.at.Reads, f) {
		w.at.Reads = append(w.at.Reads, f)
	}
}

// pathLength is the length of a path to one value: device.attributes["domain"].name.
const pathLength = 4

// fieldOf returns the field at a path from the device.
func fieldOf(path []string) (Field, bool) {
	if len(path) == 2 {
		section := Section(path[1])
		return Field{Section: section}, section == SectionDriver || section == SectionShared
	}
	if len(path) == pathLength && (path[1] == string(SectionAttributes) || path[1] == string(SectionCapacity)) {
		return Field{Section: Section(path[1]), Domain: path[2], Name: path[3]}, true
	}
	return Field{}, false
}
