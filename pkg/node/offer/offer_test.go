package offer

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/test/fixture"
)

func TestANodeWithoutAReadableGPUReportsWhy(t *testing.T) {
	r := newRig(t, "p5.48xlarge")
	r.discovers(nil, errors.New("GPU 0 is lost"), errors.New("GPU 1 timed out"))
	_, err := r.start(t)
	must(t, err)
	if pools := r.toPublish().Pools; len(pools) > 0 {
		t.Errorf("got %v to be published", pools)
	}
	fixture.Sentence(t, errorOf(r.warned()), ReasonUnreadable, "GPU 0 is lost", "GPU 1 timed out", "reset or replace it")
	_, err = r.preparer.Prepare(t.Context(), fixture.Claim("c", fixture.Result("r", "gpu-0")))
	fixture.Sentence(t, err, "none of the node's GPUs can be read (GPU 0 is lost; GPU 1 timed out)", "reset or replace them")
}

func TestANodeWithoutGPUsIsAnError(t *testing.T) {
	r := newRig(t, "p5.48xlarge")
	r.discovers(nil)
	_, err := r.start(t)
	fixture.Sentence(t, err, "is loaded but has no GPU", "kernel's log")
	if r.toPublish() != nil {
		t.Error("something is to be published")
	}
}

// A GPU that was busy or lost at the start is offered when it can be read, and
// nothing is published meanwhile.
func TestAnUnreadableGPUIsOfferedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "p5.48xlarge")
		devices := func() int { return len(r.toPublish().Pools[fixture.NodeName].Slices[0].Devices) }
		all := r.node.GPUs
		r.discovers(all[2:], errors.New("GPU 0 is lost"), errors.New("GPU 1 timed out"))
		r.watch(t)
		synctest.Wait()
		first := r.toPublish()
		after(time.Hour)
		if r.toPublish() != first || devices() != 6 {
			t.Errorf("got %d devices; published again: %t", devices(), r.toPublish() != first)
		}
		if strings.Count(r.said(), "GPU 0 is lost") != 1 {
			t.Errorf("it is not reported once:\n%s", r.said())
		}
		for _, step := range []struct {
			gpus     []gpu.GPU
			problems []error
			want     int
		}{
			{all[1:], []error{errors.New("GPU 0 is lost")}, 7},
			{nil, nil, 7}, // for a moment, nothing can be read
			{all, nil, 8},
		} {
			r.discovers(step.gpus, step.problems...)
			after(rereads.Cap)
			if devices() != step.want {
				t.Errorf("got %d devices, want %d", devices(), step.want)
			}
		}
	})
}
