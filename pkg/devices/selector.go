package devices

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/lru"
)

// language has the CEL features of a cluster with default feature gates.
var language = dracel.Features{EnableConsumableCapacity: true}

// remembered bounds the cache of compiled expressions.
const remembered = 1000

// Selectors caches compiled CEL expressions. It is safe for concurrent use.
type Selectors struct {
	known    *lru.Cache
	compiled *dracel.Cache
}

// NewSelectors returns an empty cache.
func NewSelectors() *Selectors {
	return &Selectors{known: lru.New(remembered), compiled: dracel.NewCache(remembered, language)}
}

// Get returns the compiled expression.
func (s *Selectors) Get(expression string) *Selector {
	if known, ok := s.known.Get(expression); ok {
		return known.(*Selector)
	}
	selector := Compile(expression)
	s.known.Add(expression, selector)
	return selector
}

// Compiled is a cache of the type that the scheduler's allocator takes.
func (s *Selectors) Compiled() *dracel.Cache { return s.compiled }

// Selector is an expression, compiled and read.
type Selector struct {
	// Err is set if the expression does not compile, costs more than the API server allows, or has a
	// number that takes too long to parse.
	Err error
	// Names include the attributes that it may read, without their domains. With Everything, it may
	// read any.
	Names      []string
	Everything bool
	// Conditions all have to be true. There is at least one.
	Conditions []Condition
	program    dracel.CompilationResult
}

// Compile compiles an expression like the API server.
func Compile(expression string) *Selector {
	s := read(expression)
	if s.Err != nil {
		return s // compiling evaluates constants
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

// Matches reports whether a device passes. The error is Err, or an error of the evaluation.
func (s *Selector) Matches(ctx context.Context, device dracel.Device) (bool, error) {
	if s.Err != nil {
		return false, fmt.Errorf("it %w", s.Err)
	}
	matches, _, err := s.program.DeviceMatches(ctx, device)
	return matches, err
}
