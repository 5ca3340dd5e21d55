package probe

import (
	"context"
	"time"
)

// answerAge is how long one answer serves all callers. kubelet asks every few seconds.
const answerAge = 500 * time.Millisecond

// answer is that of a check, which runs at most once at a time and once per answerAge, however many ask.
type answer struct {
	check Check
	// turn guards what follows. It is a channel, because a caller that leaves must not wait.
	turn  chan struct{}
	given time.Time
	err   error
}

func newAnswer(check Check) *answer {
	return &answer{check: check, turn: make(chan struct{}, 1)}
}

// get returns what the check found within answerAge or finds now. The check does not end with the caller: those
// who wait get its answer.
func (a *answer) get(ctx context.Context) error {
	select {
	case a.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-a.turn }()
	if a.given.IsZero() || time.Since(a.given) >= answerAge {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), Timeout)
		defer cancel()
		a.err = a.check(limited)
		a.given = time.Now()
	}
	return a.err
}
