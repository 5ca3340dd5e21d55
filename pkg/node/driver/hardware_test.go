package driver

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
)

// A node without a GPU is not worth a line every few seconds.
func TestWhyThereIsNoGPUIsLoggedOnce(t *testing.T) {
	h := newHardware(t)
	notLoaded, noLibrary := errors.New("driver is not loaded"), errors.New("no usable library")
	h.fails = slices.Concat(slices.Repeat([]error{noLibrary}, 5), slices.Repeat([]error{notLoaded}, 5))
	d := newDriver(t, options(t, apiserver.New(), h))
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		start := time.Now()
		must(t, d.awaitHardware(klog.NewContext(t.Context(), logger)))
		if took := time.Since(start); took > 10*hardwareRetries.Cap {
			t.Errorf("ten retries took %s", took)
		}
		logs := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		for _, reason := range []string{"driver is not loaded", "no usable library"} {
			if got := strings.Count(logs, reason); got != 1 {
				t.Errorf("%q is said %d times:\n%s", reason, got, logs)
			}
		}
	})
}

// Another version of the driver was installed while the plugin waited for one.
func TestALibraryThatWasReplacedEndsTheProcess(t *testing.T) {
	h := newHardware(t)
	h.fails = []error{errors.New("driver is not loaded"), fmt.Errorf("%w: restart the plugin", nvml.ErrReplaced)}
	d := newDriver(t, options(t, apiserver.New(), h))
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		fixture.Sentence(t, d.awaitHardware(ctx), "the NVML library was replaced", "restart the plugin")
	})
	if h.opened != 0 {
		t.Error("it went on")
	}
}

// A driver container was unmounted, or packages were upgraded, while GPUs were offered.
func TestADriverThatIsReplacedEndsTheProcess(t *testing.T) {
	h := newHardware(t)
	d := newDriver(t, options(t, apiserver.New(), h))
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		must(t, d.openHardware(ctx))
		start, replaced := time.Now(), 10*checkInterval
		time.AfterFunc(replaced, func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.replaced = fmt.Errorf("%w: the plugin ends", nvml.ErrReplaced)
		})
		fixture.Sentence(t, d.watchReplacement(ctx), "the NVML library was replaced", "the plugin ends")
		if took := time.Since(start); took < replaced || took > replaced+checkInterval {
			t.Errorf("it ended after %s", took)
		}
	})
	_, ctx := ktesting.NewTestContext(t)
	fixture.Sentence(t, d.watchHardware(ctx), "the NVML library was replaced")
}

func TestADriverWithoutGPUsIsClosedAgain(t *testing.T) {
	h := newHardware(t)
	h.node = gpu.Node{DriverVersion: "580.95.05"}
	d := newDriver(t, options(t, apiserver.New(), h))
	fixture.Sentence(t, d.openHardware(t.Context()), "580.95.05 is loaded but has no GPU")
	if h.opened != 1 || h.closed != 1 {
		t.Errorf("opened %d times, closed %d times", h.opened, h.closed)
	}
}

// Claims that share a GPU by MPS need the node's supervisor.
func TestTheSupervisorIsAmongTheTools(t *testing.T) {
	o := options(t, apiserver.New(), newHardware(t))
	o.MPSRoot = t.TempDir()
	d := newDriver(t, o)
	must(t, d.openHardware(t.Context()))
	if d.hardware.Tools.Daemons != d.daemons {
		t.Errorf("the daemons are %v, want %v", d.hardware.Tools.Daemons, d.daemons)
	}
}
