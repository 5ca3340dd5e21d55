package devices

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/lru"
)

// language is what a stock cluster's expressions may use.
var language = dracel.Features{EnableConsumableCapacity: true}

// remembered is of how many expressions is kept what they compile to.
const remembered = 1000

// Selectors keeps what CEL expressions of selectors compile to, which depends on nothing but
// their text. It is safe for concurrent use.
type Selectors struct {
	known    *lru.Cache
	compiled *dracel.Cache
}

// NewSelectors knows none.
func NewSelectors() *Selectors {
	return &Selectors{known: lru.New(remembered), compiled: dracel.NewCache(remembered, language)}
}

// Get gives what Compile does, once for each expression.
func (s *Selectors) Get(expression string) *Selector {
	if known, ok := s.known.Get(expression); ok {
		return known.(*Selector)
	}
	selector := Compile(expression)
	s.known.Add(expression, selector)
	return selector
}

// Compiled are the same expressions for the scheduler's allocator, which has a type for them.
func (s *Selectors) Compiled() *dracel.Cache { return s.compiled }

// Selector is an expression, compiled and read.
type Selector struct {
	// Err tells why the expression cannot be used: it does not compile, costs more than the
	// API server allows, or has a number that may take for ever to read.
	Err error
	// Names are the attributes that it may read, without their domains, and strings that are
	// none. With Everything, it may read any.
	Names      []string
	Everything bool
	// Conditions are those that all have to be true. There is one at least.
	Conditions []Condition
	program    dracel.CompilationResult
}

// Check tells why an expression cannot be used.
func Check(expression string) error { return Compile(expression).Err }

// Compile compiles an expression as the API server does.
func Compile(expression string) *Selector {
	s := read(expression)
	if s.Err != nil {
		return s // it may not be looked at any further
	}
	s.program = dracel.GetCompiler(language).CompileCELExpression(expression, dracel.Options{})
	switch {
	case s.program.Error != nil:
		s.Err = fmt.Errorf("does not compile: %s", s.program.Error.Detail)
	case s.program.MaxCost > resourceapi.CELSelectorExpressionMaxCost:
		s.Err = fmt.Errorf("may cost %d, where %d is the most that the API server allows: make it simpler", s.program.MaxCost, uint64(resourceapi.CELSelectorExpressionMaxCost))
	}
	return s
}

// Matches tells whether a device passes. The error is Err, or what happened on this device.
func (s *Selector) Matches(ctx context.Context, device dracel.Device) (bool, error) {
	if s.Err != nil {
		return false, fmt.Errorf("it %w", s.Err)
	}
	matches, _, err := s.program.DeviceMatches(ctx, device)
	return matches, err
}
