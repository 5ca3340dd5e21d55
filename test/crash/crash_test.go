package crash_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/test/fixture"
)

// Devices of the simulated machine.
const (
	small     = "gpu-0-mig-1g10gb-19-0"
	big       = "gpu-0-mig-3g40gb-9-4"
	elsewhere = "gpu-1-mig-3g40gb-9-4"
	others    = "gpu-1-mig-1g10gb-19-0"
)

// long is a latency that a test does not live to see the end of.
const long = 10 * time.Minute

// scene is a node on which somebody has a partition by hand, a claim has one,
// and another claim is about to be prepared or unprepared.
type scene struct {
	*node
	plugin         *plugin
	foreign        []string
	other, claim   *resourceapi.ResourceClaim
	others         []string // the other claim's devices
	cutShort       string
	preparedBefore bool
}

func newScene(t *testing.T, operation string) *scene {
	t.Helper()
	s := &scene{node: newNode(t), cutShort: operation, preparedBefore: operation == "unprepare"}
	s.must(s.gpu.SetMIGMode(2, true))
	start := 0
	_, err := s.gpu.CreateInstance(2, "2g.20gb", &start)
	s.must(err)
	s.foreign = s.devices()
	s.plugin = s.start()
	s.other, s.claim = s.put("other", others), s.put("c", small, big, elsewhere)
	s.must(s.plugin.prepare(s.within(), s.other))
	s.others = slices.DeleteFunc(s.devices(), func(uuid string) bool { return slices.Contains(s.foreign, uuid) })
	if s.preparedBefore {
		s.must(s.plugin.prepare(s.within(), s.claim))
	}
	return s
}

// begin starts the operation that is cut short.
func (s *scene) begin() {
	ctx, cancel := context.WithCancel(s.Context())
	s.Cleanup(cancel)
	go func() { // it fails when its plugin is killed
		if s.cutShort == "prepare" {
			_ = s.plugin.prepare(ctx, s.claim)
		} else {
			_ = s.plugin.unprepare(ctx, s.claim)
		}
	}()
}

// recover starts the plugin anew and finds everything in order, whether the
// claim is still there or not.
func (s *scene) recover(gone bool) {
	s.Helper()
	s.must(s.gpu.Clear())
	if gone {
		s.remove(s.claim)
	}
	s.plugin = s.start()
	fixture.Eventually(s, "order after the start", func() error { return s.order(s.foreign) })
	if gone {
		fixture.Eventually(s, "the end of the claim", func() error { return s.prepared(s.other) })
	} else {
		s.must(s.plugin.prepare(s.within(), s.claim))
		s.must(s.order(s.foreign))
		s.must(s.prepared(s.other, s.claim))
		s.must(s.plugin.unprepare(s.within(), s.claim))
	}
	s.must(s.order(s.foreign))
	s.must(s.prepared(s.other))
	for _, uuid := range append(slices.Clone(s.foreign), s.others...) {
		if !slices.Contains(s.devices(), uuid) {
			s.Errorf("%s was there before and is gone", uuid)
		}
	}
}

// The plugin is killed while the driver is about to change a GPU for it, and
// when it just has.
func TestKilledAtEachChangeOfAGPU(t *testing.T) {
	for operation, functions := range map[string][]string{
		"prepare":   {"nvmlDeviceSetMigMode", "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"},
		"unprepare": {"nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy", "nvmlDeviceSetMigMode"},
	} {
		for _, function := range functions {
			for _, after := range []bool{false, true} {
				for _, gone := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, %s, after=%t, gone=%t", operation, function, after, gone), func(t *testing.T) {
						s := newScene(t, operation)
						slow := s.gpu.SetLatency
						if after {
							slow = s.gpu.SetLatencyAfter
						}
						s.must(slow(function, long))
						s.begin()
						fixture.Eventually(t, "the call", func() error { return s.underWay(function) })
						s.plugin.kill()
						s.recover(gone)
					})
				}
			}
		}
	}
}

func (s *scene) underWay(function string) error {
	state, err := s.gpu.State()
	if err != nil {
		return err
	}
	for _, call := range state.SlowCalls {
		if strings.HasPrefix(call.Function, function) {
			return nil
		}
	}
	return fmt.Errorf("under way are %v", state.SlowCalls)
}

// The plugin is killed as soon as the nth change of one of its files is seen.
func TestKilledAtEachChangeOfAFile(t *testing.T) {
	for _, operation := range []string{"prepare", "unprepare"} {
		for count := 1; ; count++ {
			more := false
			t.Run(fmt.Sprintf("%s, change %d", operation, count), func(t *testing.T) {
				s := newScene(t, operation)
				watcher, err := fsnotify.NewWatcher()
				s.must(err)
				defer watcher.Close()
				for _, dir := range []string{s.state() + "/claims", s.path("cdi"), s.state() + "/locks"} {
					s.must(watcher.Add(dir))
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					if operation == "prepare" {
						_ = s.plugin.prepare(t.Context(), s.claim)
					} else {
						_ = s.plugin.unprepare(t.Context(), s.claim)
					}
				}()
				more = nth(watcher, done, count)
				s.plugin.kill()
				s.recover(count%2 == 0)
			})
			if !more || t.Failed() {
				break
			}
		}
	}
}

// nth waits for that many changes and tells whether there were as many before
// the operation was done.
func nth(watcher *fsnotify.Watcher, done <-chan struct{}, count int) bool {
	for {
		select {
		case <-watcher.Events:
			if count--; count == 0 {
				return true
			}
		case <-done:
			return false
		}
	}
}

// During a rolling update, two processes work on the same GPUs; one is killed
// while it makes a partition, and the other goes on at once.
func TestTwoProcessesOfWhichOneIsKilled(t *testing.T) {
	n := newNode(t)
	old, fresh := n.start("--pod-uid=old"), n.start("--pod-uid=new")
	var claims []*resourceapi.ResourceClaim
	for start := range 7 {
		claims = append(claims, n.put(fmt.Sprint("c", start), fmt.Sprint("gpu-0-mig-1g10gb-19-", start)))
	}
	n.must(n.gpu.SetLatency("nvmlGpuInstanceCreateComputeInstance", 50*time.Millisecond))
	errs := make(chan error, len(claims))
	for i, claim := range claims {
		worker := fresh
		if i < 3 {
			worker = old
		}
		go func() { errs <- worker.prepare(n.within(), claim) }()
	}
	fixture.Eventually(t, "an intent", func() error {
		if devices, _ := n.recorded(); len(devices) == 0 {
			return fmt.Errorf("records of nothing")
		}
		return nil
	})
	old.kill()
	failed := 0
	for range claims {
		if err := <-errs; err != nil {
			failed++
		}
	}
	if failed > 3 {
		t.Errorf("%d claims were not prepared, of which 3 were the killed process's", failed)
	}
	for _, claim := range claims { // kubelet asks the process that is left
		n.must(fresh.prepare(n.within(), claim))
	}
	n.must(n.order(nil))
	n.must(n.prepared(claims...))
	for _, claim := range claims {
		n.must(fresh.unprepare(n.within(), claim))
	}
	n.must(n.order(nil))
	n.must(n.prepared())
}

// Claims that are deleted while the plugin is down are cleaned up when it
// starts, once the API server tells that they are gone.
func TestTheAPIServerIsAwayAtTheStart(t *testing.T) {
	s := newScene(t, "unprepare")
	s.plugin.kill()
	s.remove(s.claim)
	s.setAway(true)
	s.plugin = s.start()
	s.must(s.prepared(s.other, s.claim))
	s.must(s.order(s.foreign))
	// Kubelet needs no API server to unprepare.
	s.must(s.plugin.unprepare(s.within(), s.claim))
	s.must(s.order(s.foreign))
	s.must(s.prepared(s.other))
}

// After a reboot the machine has no instances, and the records are of another boot.
func TestADriverThatWasReloaded(t *testing.T) {
	s := newScene(t, "unprepare")
	s.plugin.kill()
	s.must(s.gpu.Reset(0))
	s.must(s.gpu.Reset(1))
	s.plugin = s.start()
	s.must(s.plugin.prepare(s.within(), s.claim))
	s.must(s.plugin.prepare(s.within(), s.other))
	s.must(s.order(s.foreign))
	s.must(s.prepared(s.other, s.claim))
}
