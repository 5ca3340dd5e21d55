package usage

import (
	"net/http"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	testclock "k8s.io/utils/clock/testing"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/test/fixture"
)

type claimed = map[string]map[resourceapi.QualifiedName]resource.Quantity

// rig is a Meter that runs, with a plugin on node n1.
type rig struct {
	*Meter
	clock   *testclock.FakeClock
	cache   *indexed
	plugins *plugins
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{clock: testclock.NewFakeClock(t0), cache: newIndexed(t), plugins: newPlugins(t)}
	ip, port := r.plugins.at(t)
	r.cache.add(t, pluginPod("n1", ip, port))
	o := r.cache.options()
	o.Clock = r.clock
	r.Meter = New(o)
	running(t, r.scraper)
	return r
}

// workloadWith is one that holds one GPU of node n1.
func workloadWith(device string) workload.State {
	return ofClaims(holder("c", claimed{device: nil}))
}

func TestUsageIsThatOfTheWorkloadsDevices(t *testing.T) {
	r := newRig(t)
	r.plugins.tell(page(series("gpu-0", 0.5, 60*gi, 80*gi, t0), series("gpu-1-timeslice", 1, 10*gi, 80*gi, t0))...)
	own := holder("own", claimed{"gpu-0": nil, "gpu-1-timeslice/a": amounts("shares=1", "memory=20Gi")})
	r.cache.add(t, own,
		holder("other", claimed{"gpu-1-timeslice/b": amounts("shares=1", "memory=20Gi")}),
		poolSlice("s", 1, claimed{"gpu-0": nil, "gpu-1-timeslice": amounts("shares=4", "memory=80Gi")}))
	got, err := r.Usage(t.Context(), ofClaims(own))
	if err != nil {
		t.Fatal(err)
	}
	if got.Devices != 2 || !near(got.Utilization.Value, (0.5+0.25)/1.25) || !near(got.Memory.Value, (0.75+0.25*0.25)/1.25) {
		t.Errorf("got %+v", got)
	}
}

func TestAWorkloadWithoutDevicesUsesNone(t *testing.T) {
	r := newRig(t)
	got, err := r.Usage(t.Context(), workload.State{Pods: []workload.Pod{{Name: "waits", Pending: 1}}})
	if err != nil || got != (Usage{}) {
		t.Errorf("got %+v, %v", got, err)
	}
	if r.plugins.requests() != 0 {
		t.Error("a plugin was asked")
	}
}

// kubelet attaches volumes before it prepares claims, so for minutes no plugin reports the devices of a
// starting pod. Such a pod must not hide how busy the others are.
func TestDevicesOfAPodThatHasNotStartedAreIdle(t *testing.T) {
	r := newRig(t)
	r.plugins.tell(page(series("gpu-0", 0.5, 60*gi, 80*gi, t0))...)
	both := ofClaims(holder("runs", claimed{"gpu-0": nil}), holder("starts", claimed{"gpu-1": nil}))
	both.Pods[1].Unstarted = true
	got, err := r.Usage(t.Context(), both)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Usage{Utilization: Mean{Value: 0.25}, Memory: Mean{Value: 0.375}, Devices: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A claim that a running pod shares with one that starts is in use.
func TestADeviceIsInUseWhileOneOfItsPodsRuns(t *testing.T) {
	r := newRig(t)
	r.plugins.tell(page(series("gpu-0", 0.5, 60*gi, 80*gi, t0))...)
	shared := holder("shared", claimed{"gpu-0": nil})
	for _, starting := range []int{0, 1} {
		state := ofClaims(shared, shared)
		state.Pods[starting].Unstarted = true
		got, err := r.Usage(t.Context(), state)
		if want := (Usage{Utilization: Mean{Value: 0.5}, Memory: Mean{Value: 0.75}, Devices: 1}); err != nil || got != want {
			t.Errorf("pod %d starts: got %+v, %v, want %+v", starting, got, err, want)
		}
	}
}

func TestAShareOfAPodThatHasNotStartedIsIdle(t *testing.T) {
	r := newRig(t)
	r.plugins.tell(page(series("gpu-0-timeslice", 0.8, 40*gi, 80*gi, t0))...)
	runs := holder("runs", claimed{"gpu-0-timeslice/a": amounts("shares=1", "memory=40Gi")})
	starts := holder("starts", claimed{"gpu-0-timeslice/b": amounts("shares=1", "memory=40Gi")})
	r.cache.add(t, runs, starts, poolSlice("s", 1, claimed{"gpu-0-timeslice": amounts("shares=2", "memory=80Gi")}))
	both := ofClaims(runs, starts)
	both.Pods[1].Unstarted = true
	got, err := r.Usage(t.Context(), both)
	if err != nil || !near(got.Utilization.Value, 0.4) || got.Devices != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestANewDeviceIsAskedForAtOnce(t *testing.T) {
	r := newRig(t)
	r.plugins.tell(page(series("gpu-0", 0.5, 0, 1, t0))...)
	if _, err := r.Usage(t.Context(), workloadWith("gpu-0")); err != nil {
		t.Fatal(err)
	}
	// Another question within the second is not another request.
	_, err := r.Usage(t.Context(), workloadWith("gpu-1"))
	fixture.Sentence(t, err, "the devices of Deployment/vllm", "the plugin of node n1 reports 1 devices, but not gpu-1", "claim of UID c")
	if r.plugins.requests() != 1 {
		t.Errorf("%d requests were made", r.plugins.requests())
	}
	r.plugins.tell(page(series("gpu-1", 0.75, 0, 1, t0))...)
	r.clock.Step(askAgainAfter)
	got, err := r.Usage(t.Context(), workloadWith("gpu-1"))
	if err != nil || !near(got.Utilization.Value, 0.75) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestAReadingIsRefusedWhenItIsTooOld(t *testing.T) {
	r := newRig(t)
	r.plugins.tell(page(series("gpu-0", 0.5, 0, 1, t0.Add(-tooOld)))...)
	if _, err := r.Usage(t.Context(), workloadWith("gpu-0")); err != nil {
		t.Errorf("it is as old as it may be: %v", err)
	}
	r.plugins.tell(page(series("gpu-0", 0.5, 0, 1, t0.Add(-tooOld-time.Second)))...)
	if _, err := r.scraper.again(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	_, err := r.Usage(t.Context(), workloadWith("gpu-0"))
	fixture.Sentence(t, err, "the plugin of node n1 sampled device gpu-0 46s ago (2026-09-01T11:59:14Z)", "compare the clocks")
}

func TestAPluginThatFailsIsAnsweredForUntilItsReadingsAreTooOld(t *testing.T) {
	r := newRig(t)
	r.plugins.tell(page(series("gpu-0", 0.5, 0, 1, t0.Add(tooOld)))...) // its clock is ahead
	if _, err := r.Usage(t.Context(), workloadWith("gpu-0")); err != nil {
		t.Fatal(err)
	}
	r.plugins.respond(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	r.clock.Step(tooOld)
	if known, err := r.scraper.again(t.Context(), "n1"); err != nil || known.err == nil {
		t.Fatalf("got %+v, %v", known, err)
	}
	if _, err := r.Usage(t.Context(), workloadWith("gpu-0")); err != nil {
		t.Errorf("it is as old as it may be: %v", err)
	}
	r.clock.Step(time.Second)
	_, err := r.Usage(t.Context(), workloadWith("gpu-0"))
	fixture.Sentence(t, err, "node n1", "gpu-0", "has not answered for 46s", "pod mica/plugin-n1", "503 Service Unavailable")
}

// The tests of cluster and page have the other reasons.
func TestANodeThatNeverAnsweredIsNamed(t *testing.T) {
	r := newRig(t)
	r.plugins.Close()
	got, err := r.Usage(t.Context(), workloadWith("gpu-0"))
	fixture.Sentence(t, err, "how busy the devices of Deployment/vllm are", "node n1, which has device gpu-0, has never answered", "pod mica/plugin-n1", "connection refused")
	if got != (Usage{}) {
		t.Errorf("there is an answer as well: %+v", got)
	}
}
