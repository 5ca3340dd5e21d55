package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mica-gpu/mica/pkg/tracing"
)

// step is one effect on a GPU, whose lock the caller holds. Both methods may be
// repeated, and undo needs nothing but the record that the step was made from:
// it finds the effect, a part of it, or nothing.
type step interface {
	do(ctx context.Context, tools Tools) error
	undo(ctx context.Context, tools Tools) error
}

// job is steps in their order, which have to do with one GPU or one daemon.
type job struct {
	gpu   string
	steps []step
	// requests are where errors say that it went wrong.
	requests []string
}

func (j *job) add(request string, s step) {
	j.requests = append(j.requests, request)
	j.steps = append(j.steps, s)
}

// failed says what went wrong at a step.
func (j *job) failed(step int, err error) error {
	if own := (explained{}); errors.As(err, &own) {
		return fmt.Errorf("request %q: %w", j.requests[step], err)
	}
	return fmt.Errorf("request %q: %w: %s", j.requests[step], err, advice(err, j.gpu))
}

// doAll carries out jobs, in parallel. What can pass is tried again until ctx ends.
func doAll(ctx context.Context, jobs []*job, tools Tools) error {
	return parallelly(jobs, func(j *job) error {
		for i, s := range j.steps {
			err := traced(ctx, "", j, s, func(ctx context.Context) error {
				return persist(ctx, func() error { return s.do(ctx, tools) })
			})
			if err != nil {
				return j.failed(i, err)
			}
		}
		return nil
	})
}

// undo takes all effects back, the last one first. It stops at the first of a GPU that
// stays until ctx ends.
func (w work) undo(ctx context.Context, tools Tools) error {
	return w.undoEach(ctx, func(ctx context.Context, s step) error {
		return persist(ctx, func() error { return s.undo(ctx, tools) })
	})
}

// undoOnce is undo without patience.
func (w work) undoOnce(ctx context.Context, tools Tools) error {
	return w.undoEach(ctx, func(ctx context.Context, s step) error { return s.undo(ctx, tools) })
}

func (w work) undoEach(ctx context.Context, undo func(context.Context, step) error) error {
	for _, jobs := range [][]*job{w.daemons, w.gpus} {
		err := parallelly(jobs, func(j *job) error {
			for i, s := range slices.Backward(j.steps) {
				err := traced(ctx, "undo ", j, s, func(ctx context.Context) error { return undo(ctx, s) })
				if err != nil {
					return j.failed(i, err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// traced does something to a step, as a part of the claim's span that is named as the step's type.
func traced(ctx context.Context, prefix string, j *job, s step, do func(context.Context) error) error {
	ctx, span := tracing.Begin(ctx, prefix+"step")
	if span.On() {
		_, name, _ := strings.Cut(fmt.Sprintf("%T", s), ".")
		span.Rename(prefix + name)
		span.Set("mica.gpu.uuid", j.gpu)
	}
	err := do(ctx)
	span.End(err)
	return err
}

// parallelly needs no goroutine for a claim on one GPU, which most are.
func parallelly(all []*job, work func(*job) error) error {
	if len(all) == 1 {
		return work(all[0])
	}
	errs := make([]error, len(all))
	var group sync.WaitGroup
	for i, j := range all {
		group.Go(func() { errs[i] = work(j) })
	}
	group.Wait()
	// A GPU that is lost is only worth a word when nothing else is in the way.
	if reached := slices.DeleteFunc(slices.Clone(errs), lost); inOneLine(reached) != nil {
		return inOneLine(reached)
	}
	return inOneLine(errs)
}

// toUndo gives time to what is undone, also to what was waited for in vain.
func toUndo(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}
