package keda

import "errors"

var (
	// ErrTrigger is what errors are that last until the trigger is corrected.
	ErrTrigger = errors.New("the trigger cannot be read")
	// ErrSource is what errors are that last until a source of figures answers.
	ErrSource = errors.New("a source of figures does not answer")
	// ErrNoData is what the error is of a query that matches nothing.
	ErrNoData = errors.New("the query matches nothing")
)

// sentence is an error that is of a kind without its text saying so: the text is what KEDA shows.
type sentence struct {
	error
	kind error
}

// Is tells the kind.
func (s sentence) Is(target error) bool { return target == s.kind }

// Unwrap gives what is behind the sentence.
func (s sentence) Unwrap() error { return s.error }
