package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/pkg/node/sample"
	"github.com/mica-gpu/mica/test/fixture"
)

// A node without a GPU is not worth a line every few seconds.
func TestWhyThereIsNoGPUIsSaidOnce(t *testing.T) {
	h := newHardware(t)
	notLoaded, noLibrary := errors.New("driver is not loaded"), errors.New("no usable library")
	h.fails = slices.Concat(slices.Repeat([]error{noLibrary}, 5), slices.Repeat([]error{notLoaded}, 5))
	d, err := New(options(t, newAPIServer(), h))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		start := time.Now()
		if err := d.awaitHardware(klog.NewContext(t.Context(), logger)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 10*maxHardwareRetry {
			t.Errorf("ten retries took %s", took)
		}
		logs := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		for _, reason := range []string{"driver is not loaded", "no usable library"} {
			if got := strings.Count(logs, reason); got != 1 {
				t.Errorf("%q is said %d times:\n%s", reason, got, logs)
			}
		}
	})
	if d.publisher.get() == nil || len(d.publisher.get().Pools) != 1 {
		t.Errorf("got %v to publish", d.publisher.get())
	}
}

// Another version of the driver was installed while the plugin waited for one.
func TestALibraryThatWasReplacedEndsTheProcess(t *testing.T) {
	h := newHardware(t)
	h.fails = []error{errors.New("driver is not loaded"), fmt.Errorf("%w: restart the plugin", nvml.ErrReplaced)}
	d, err := New(options(t, newAPIServer(), h))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		fixture.Sentence(t, d.awaitHardware(ctx), "the NVML library was replaced", "restart the plugin")
	})
	if h.opened != 0 {
		t.Error("it went on")
	}
}

func TestUnreadableGPUsAreReportedAndTheOthersOffered(t *testing.T) {
	h := newHardware(t)
	h.node.GPUs = h.node.GPUs[1:]
	h.problems = []error{errors.New("GPU 0 is lost")}
	d, err := New(options(t, newAPIServer(), h))
	if err != nil {
		t.Fatal(err)
	}
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	if err := d.openHardware(klog.NewContext(t.Context(), logger)); err != nil {
		t.Fatal(err)
	}
	if logs := logger.GetSink().(ktesting.Underlier).GetBuffer().String(); !strings.Contains(logs, "GPU 0 is lost") {
		t.Errorf("it is not reported:\n%s", logs)
	}
	if got := len(d.publisher.get().Pools["node-a"].Slices[0].Devices); got != 7 {
		t.Errorf("got %d devices, want 7", got)
	}
}

// A GPU that was busy or lost at the start is offered when it can be read, and
// nothing is published meanwhile.
func TestAnUnreadableGPUIsOfferedLater(t *testing.T) {
	h := newHardware(t)
	all := h.node.GPUs
	now := &changing{openHardware: openHardware{h}}
	o := options(t, newAPIServer(), h)
	o.Open = func(context.Context) (Hardware, error) { return now, nil }
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	devices := func() int { return len(d.publisher.get().Pools["node-a"].Slices[0].Devices) }
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		// Channels of this bubble, so that time passes.
		d.reconsider, d.samples = make(chan struct{}, 1), sample.New()
		now.set(all[2:], errors.New("GPU 0 is lost"), errors.New("GPU 1 timed out"))
		done := make(chan error, 1)
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		go func() { done <- d.watchHardware(ctx) }()
		synctest.Wait()
		first := d.publisher.get()
		after(time.Hour)
		if d.publisher.get() != first || devices() != 6 {
			t.Errorf("got %d devices; published again: %t", devices(), d.publisher.get() != first)
		}
		if logs := logger.GetSink().(ktesting.Underlier).GetBuffer().String(); strings.Count(logs, "GPU 0 is lost") != 1 {
			t.Errorf("it is not reported once:\n%s", logs)
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
			now.set(step.gpus, step.problems...)
			after(maxRereadRetry)
			if devices() != step.want {
				t.Errorf("got %d devices, want %d", devices(), step.want)
			}
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// changing is hardware on which GPUs come and go.
type changing struct {
	openHardware
	lock     sync.Mutex
	gpus     []gpu.GPU
	problems []error
}

func (c *changing) set(gpus []gpu.GPU, problems ...error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.gpus, c.problems = gpus, problems
}

func (c *changing) Discover() (gpu.Node, []error, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	return gpu.Node{DriverVersion: "580.95.05", GPUs: c.gpus}, c.problems, nil
}

func TestADriverWithoutGPUsIsClosedAgain(t *testing.T) {
	h := newHardware(t)
	h.node = gpu.Node{DriverVersion: "580.95.05"}
	d, err := New(options(t, newAPIServer(), h))
	if err != nil {
		t.Fatal(err)
	}
	err = d.openHardware(t.Context())
	if err == nil || err.Error() != "the NVIDIA driver 580.95.05 is loaded but has no usable GPU" {
		t.Errorf("got %v", err)
	}
	if h.opened != 1 || h.closed != 1 {
		t.Errorf("opened %d times, closed %d times", h.opened, h.closed)
	}
}
