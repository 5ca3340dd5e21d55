package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/tracing"
)

// work is the steps of a record: what is done to GPUs, then the daemons that serve them.
type work struct{ gpus, daemons []*job }

// job is steps in their order, which concern one GPU or one daemon.
type job struct {
	gpu   string
	steps []step
	// requests are those of the steps, for errors.
	requests []string
}

// workOf makes the steps of a record. Only the version that recorded an unknown step can
// undo it.
func workOf(record *journal.Record, others neighbours) (work, error) {
	var w work
	for i, device := range record.Devices {
		for _, s := range device.Steps {
			t, known := stepTypes[s.Name]
			if !known {
				return work{}, fmt.Errorf("request %q: %s was prepared with the step %q, which this version of the plugin does not know: install the version again that prepared it", device.Request, device.Device, s.Name)
			}
			t.add(&w, spot{record, i, others})
		}
	}
	return w, nil
}

// of returns the job on a GPU, a new one if there is none.
func (w *work) of(uuid string) *job {
	if i := slices.IndexFunc(w.gpus, func(j *job) bool { return j.gpu == uuid }); i >= 0 {
		return w.gpus[i]
	}
	w.gpus = append(w.gpus, &job{gpu: uuid})
	return w.gpus[len(w.gpus)-1]
}

// addTo adds a step to the job on the device's GPU.
func (s spot) addTo(w *work, step step) {
	w.of(s.device().UUID).add(s.device().Request, step)
}

func (j *job) add(request string, s step) {
	j.requests = append(j.requests, request)
	j.steps = append(j.steps, s)
}

func (j *job) failed(step int, err error) error {
	if own := (explained{}); errors.As(err, &own) {
		return fmt.Errorf("request %q: %w", j.requests[step], err)
	}
	return fmt.Errorf("request %q: %w: %s", j.requests[step], err, advice(err, j.gpu))
}

// doAll carries out jobs, in parallel. It tries again what can pass, until ctx ends.
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

// undo takes all effects back, the last one first. On each GPU it stops at the first effect
// that stays. It may be repeated.
func (w work) undo(ctx context.Context, tools Tools) error {
	for _, jobs := range [][]*job{w.daemons, w.gpus} {
		err := parallelly(jobs, func(j *job) error {
			for i, s := range slices.Backward(j.steps) {
				err := traced(ctx, "undo ", j, s, func(ctx context.Context) error { return s.undo(ctx, tools) })
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

// traced does something to a step in a span of its own, named for the step's type.
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

// parallelly starts no goroutine for a claim on one GPU, the usual case: a test can crash it.
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
	// A lost GPU counts only if nothing else failed: callers give up on a lost GPU.
	if err := inOneLine(slices.DeleteFunc(slices.Clone(errs), lost)...); err != nil {
		return err
	}
	return inOneLine(errs...)
}

// toUndo gives time to undo something, even if the call's time is up.
func toUndo(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}
