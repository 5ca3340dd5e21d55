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

// parse reads an expression as it was written: without macros a cel.bind or an exists is a
// call like any other, and can be printed again.
var parse = sync.OnceValues(func() (*parser.Parser, error) {
	return parser.NewParser(parser.Macros(), parser.EnableOptionalSyntax(true),
		parser.EnableIdentEscapeSyntax(true), parser.ExpressionSizeCodePointLimit(math.MaxInt32))
})

// Condition is one of those that && joins to a selector.
type Condition struct {
	// Text is for people, Expression can be evaluated by itself.
	Text, Expression string
	// Reads is what of a device it looks at, in the order in which it is written.
	Reads []Field
	// Quantities are the arguments of quantity(), and Words the strings that are compared.
	Quantities, Words []string
}

// Field is a part of a device.
type Field struct {
	Section Section
	// Domain and Name are of attributes and capacities.
	Domain, Name string
}

// Section is a field of what selectors call device.
type Section string

// Sections. A driver and whether a device is shared have neither domain nor name.
const (
	SectionDriver     Section = "driver"
	SectionShared     Section = "allowMultipleAllocations"
	SectionAttributes Section = "attributes"
	SectionCapacity   Section = "capacity"
)

// read takes an expression apart. One that cannot be taken apart is one condition, and may read
// everything.
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

// scope has what cel.bind has given a name: paths from the device.
type scope map[string][]string

// walker reads an expression.
type walker struct {
	*Selector
	info   *ast.SourceInfo
	failed bool
	// at is the condition that it is in.
	at Condition
}

// split descends through && and cel.bind. around puts the bindings around a part again.
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
	// One line, however long: the text ends up in sentences.
	text, err := parser.Unparse(e, w.info, parser.WrapOnColumn(math.MaxInt32))
	if err != nil {
		w.failed = true
	}
	return text
}

// binding takes cel.bind(variable, init, body) apart.
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

// bind resolves the value where it is bound, so that a variable may hide one of its own name.
// What a value reads that is no path belongs to no condition.
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

// path is where an expression points to, from the device; nil where it does not.
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

// text is the value of a string that is written out.
func text(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	value, ok := e.AsLiteral().(types.String)
	return string(value), ok
}

// read collects what an expression looks at. A device's attributes are maps: a value is read by
// a name that is in the text, unless the name is computed, or a map is used as a whole. Names
// that point nowhere from the device are noted, too: it may be in a variable of a macro.
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

// pathLength is of a path to one value: device.attributes["domain"].name.
const pathLength = 4

// fieldOf takes a whole path from the device.
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
