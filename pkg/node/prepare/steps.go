package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/nvml"
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

// work is what a record with effects speaks of: what is done to GPUs, and the daemons
// that serve them then.
type work struct{ gpus, daemons []*job }

// stepKind is what a Step of a record stands for.
type stepKind struct {
	// add makes the step for a device of the record, and writes what it learns into it.
	add func(w *work, record *journal.Record, device int, others neighbours)
	// nothing tells that it leaves nothing that would have to be undone.
	nothing bool
	// fades tells that the effect does not outlive a reset, or a kernel driver that let
	// go of the GPU while no process held it.
	fades bool
}

var steps = map[journal.Step]stepKind{
	journal.DisableMIG:     {add: (*work).addDisable, nothing: true},
	journal.MakePartition:  {add: (*work).addPartition},
	journal.SetTimeSlice:   {add: (*work).addInterval, fades: true},
	journal.SetComputeMode: {add: (*work).addMode, fades: true},
	journal.RunDaemon:      {add: (*work).addClient},
}

// leaves tells whether something may be left of a step. Of one that is unknown, it may.
func leaves(s journal.Step) bool { return !steps[s].nothing }

func every(journal.Step) bool { return true }

// workOf makes the steps of a record that are wanted. One that is unknown was recorded by
// a newer build, which alone can undo it.
func workOf(record *journal.Record, others neighbours, wanted func(journal.Step) bool) (work, error) {
	var w work
	for i, device := range record.Devices {
		for _, name := range device.Steps {
			s, known := steps[name]
			if !known {
				return work{}, fmt.Errorf("request %q: %s was prepared with the step %q, which this version of the plugin does not know: install the version again that prepared it", device.Request, device.Device, name)
			}
			if wanted(name) {
				s.add(&w, record, i, others)
			}
		}
	}
	return w, nil
}

// of is the job on a GPU.
func (w *work) of(uuid string) *job {
	if i := slices.IndexFunc(w.gpus, func(j *job) bool { return j.gpu == uuid }); i >= 0 {
		return w.gpus[i]
	}
	w.gpus = append(w.gpus, &job{gpu: uuid})
	return w.gpus[len(w.gpus)-1]
}

func (w *work) addDisable(record *journal.Record, i int, _ neighbours) {
	device := &record.Devices[i]
	w.of(device.UUID).add(device.Request, disableMIG{device.UUID})
}

func (w *work) addInterval(record *journal.Record, i int, others neighbours) {
	device := &record.Devices[i]
	w.of(device.UUID).add(device.Request, setInterval{device, others})
}

func (w *work) addMode(record *journal.Record, i int, others neighbours) {
	device := &record.Devices[i]
	w.of(device.UUID).add(device.Request, setMode{device, others})
}

func (w *work) addPartition(record *journal.Record, i int, others neighbours) {
	device := &record.Devices[i]
	j := w.of(device.UUID)
	if first := slices.IndexFunc(record.Devices[:i], func(d journal.Device) bool { return sharesWith(d, *device) }); first >= 0 {
		j.add(device.Request, adopt{&record.Devices[first], device})
		return
	}
	if len(j.steps) == 0 {
		j.add(device.Request, enableMIG{device.UUID, others})
	}
	j.add(device.Request, &makeInstance{device: device, others: others})
	j.add(device.Request, &makeCompute{device: device, others: others})
}

// addClient adds the device to those of its daemon.
func (w *work) addClient(record *journal.Record, i int, others neighbours) {
	device := &record.Devices[i]
	for _, j := range w.daemons {
		if daemon, ok := j.steps[0].(*runDaemon); ok && daemon.devices[0].MPS.Daemon == device.MPS.Daemon {
			daemon.devices = append(daemon.devices, device)
			return
		}
	}
	j := &job{gpu: device.UUID}
	j.add(device.Request, &runDaemon{devices: []*journal.Device{device}, others: others})
	w.daemons = append(w.daemons, j)
}

// doAll carries out jobs, in parallel. What can pass is tried again until ctx ends.
func doAll(ctx context.Context, jobs []*job, tools Tools) error {
	return parallelly(jobs, func(j *job) error {
		for i, s := range j.steps {
			if err := persist(ctx, func() error { return s.do(ctx, tools) }); err != nil {
				return j.failed(i, err)
			}
		}
		return nil
	})
}

// undo takes all effects back, the last one first. It stops at the first of a GPU that
// stays until ctx ends.
func (w work) undo(ctx context.Context, tools Tools) error {
	return w.undoEach(func(s step) error {
		return persist(ctx, func() error { return s.undo(ctx, tools) })
	})
}

// undoOnce is undo without patience.
func (w work) undoOnce(ctx context.Context, tools Tools) error {
	return w.undoEach(func(s step) error { return s.undo(ctx, tools) })
}

func (w work) undoEach(undo func(step) error) error {
	for _, jobs := range [][]*job{w.daemons, w.gpus} {
		err := parallelly(jobs, func(j *job) error {
			for i, s := range slices.Backward(j.steps) {
				if err := undo(s); err != nil {
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

// lost tells that effects stay only where the GPU cannot be reached any more.
func lost(err error) bool { return errors.Is(err, nvml.ErrGPULost) }

// inOneLine joins errors as a pod's event shows them.
func inOneLine(errs []error) error {
	var joined error
	for _, err := range errs {
		switch {
		case joined == nil:
			joined = err
		case err != nil:
			joined = fmt.Errorf("%w; %w", joined, err)
		}
	}
	return joined
}

const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

// persist repeats what may succeed later until ctx ends. It tries once in any
// case: a budget that is used up must not keep an effect from being undone.
func persist(ctx context.Context, do func() error) error {
	pause := firstPause
	for {
		err := do()
		if !errors.Is(err, nvml.ErrInUse) && !errors.Is(err, nvml.ErrTransient) {
			return err
		}
		klog.FromContext(ctx).V(4).Info("A change of a GPU is tried again", "reason", err.Error(), "in", pause)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}

// advice is what to do about an error on a GPU.
func advice(err error, uuid string) string {
	switch {
	case errors.Is(err, nvml.ErrInsufficientResources):
		return "a MIG instance that somebody else made is in the way: destroy it, or delete the pod so that it is scheduled again"
	case errors.Is(err, nvml.ErrInUse):
		return "end the processes that still use it (nvidia-smi lists them); kubelet tries again"
	case errors.Is(err, nvml.ErrResetRequired), errors.Is(err, nvml.ErrNotSupported):
		return fmt.Sprintf("MIG was disabled on this GPU: enable it (nvidia-smi -i %s -mig 1) and reset the GPU", uuid)
	case errors.Is(err, nvml.ErrGPULost):
		return "the GPU does not answer any more: reset or replace it, and delete the pod so that it is scheduled again"
	default:
		return "see the kernel's log for messages of NVRM; kubelet tries again"
	}
}
