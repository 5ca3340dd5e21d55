package probe

import (
	"context"
	"time"
)

// answerAge is how long one result serves all callers. kubelet probes every few seconds.
const answerAge = 500 * time.Millisecond

// answer is the last result of a check, which runs once at a time and at most once per answerAge.
type answer struct {
	check Check
	// turn guards the fields below. It is a channel, so that a caller whose context ends need not wait.
	turn chan struct{}
	at   time.Time
	err  error
}

func newAnswer(check Check) *answer {
	return &answer{check: check, turn: make(chan struct{}, 1)}
}

// get returns the check's result, at most answerAge old. The check outlives the caller's context: others
// wait for its result.
func (a *answer) get(ctx context.Context) error {
	select {
	case a.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-a.turn }()
	if a.at.IsZero() || time.Since(a.at) >= answerAge {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), Timeout)
		defer cancel()
		a.err = a.check(limited)
		a.at = time.Now()
	}
	return a.err
}
