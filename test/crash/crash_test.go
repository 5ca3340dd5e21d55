package crash_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/node/journal"
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

// scene is a node on which an administrator has a partition by hand, a claim has one,
// and another claim is about to be prepared or unprepared.
type scene struct {
	*node
	plugin         *plugin
	foreign        []string
	other, claim   *resourceapi.ResourceClaim
	others         []string // the other claim's devices
	cutShort       string
	preparedBefore bool
	done           <-chan struct{} // closed when what begin began has ended
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
func (s *scene) begin() (done <-chan struct{}) {
	ctx, cancel := context.WithCancel(s.Context())
	s.Cleanup(cancel)
	ended := make(chan struct{})
	go func() { // it fails when its plugin is killed
		defer close(ended)
		if s.cutShort == "prepare" {
			_ = s.plugin.prepare(ctx, s.claim)
		} else {
			_ = s.plugin.unprepare(ctx, s.claim)
		}
	}()
	return ended
}

// halfway reports whether the claim's record is one of an intent.
func (s *scene) halfway() bool {
	s.Helper()
	return slices.ContainsFunc(s.records(), func(r journal.Record) bool {
		return r.ClaimUID == string(s.claim.UID) && r.State != journal.Prepared
	})
}

// recover starts the plugin anew and finds everything in order, whether the
// claim is still there or not.
func (s *scene) recover(gone bool) {
	s.Helper()
	s.must(s.gpu.Clear())
	if gone {
		s.remove(s.claim)
	}
	s.revive()
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

// revive starts what was killed.
func (s *scene) revive() {
	s.Helper()
	if s.supervisor != nil && s.supervisor.dead {
		s.supervise()
	}
	if s.plugin.dead {
		s.plugin = s.start()
	}
}

// A prepared claim that is deleted while the plugin is down is left to kubelet
// for a while, and then cleaned up.
func TestAClaimThatIsDeletedWhileThePluginIsDown(t *testing.T) {
	t.Parallel()
	s := newScene(t, "unprepare")
	s.plugin.kill()
	s.remove(s.claim)
	s.plugin = s.start()
	s.must(s.prepared(s.other, s.claim))
	fixture.Eventually(t, "the end of the claim", func() error { return s.prepared(s.other) })
	fixture.Eventually(t, "order without the claim", func() error { return s.order(s.foreign) })
	s.must(s.prepared(s.other))
}

// changesOf lists the functions by which an operation changes a GPU.
var changesOf = map[string][]string{
	"prepare":   {"nvmlDeviceSetMigMode", "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"},
	"unprepare": {"nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy", "nvmlDeviceSetMigMode"},
}

// The plugin is killed while the driver is about to change a GPU for it, and
// when it just has.
func TestKilledAtEachChangeOfAGPU(t *testing.T) {
	t.Parallel()
	for operation, functions := range changesOf {
		for _, function := range functions {
			for _, after := range []bool{false, true} {
				for _, gone := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, %s, after=%t, gone=%t", operation, function, after, gone), func(t *testing.T) {
						t.Parallel()
						s := newScene(t, operation)
						s.killDuring(function, after)
						s.recover(gone)
					})
				}
			}
		}
	}
}

// killDuring kills the plugin before or after the driver carries out a call of its operation.
func (s *scene) killDuring(function string, after bool) {
	s.Helper()
	slow := s.gpu.SetLatency
	if after {
		slow = s.gpu.SetLatencyAfter
	}
	s.must(slow(function, long))
	s.done = s.begin()
	fixture.Eventually(s, "the call", func() error { return s.underWay(function) })
	s.plugin.kill()
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

// changeOfGPU is how long the driver takes for each change of a GPU, so that a
// kill that follows the change of a file meets the operation where it was.
const changeOfGPU = 30 * time.Millisecond

// The plugin is killed as soon as the nth change of one of its files is seen, for
// all there are. Some of the kills must meet the claim halfway.
func TestKilledAtEachChangeOfAFile(t *testing.T) {
	t.Parallel()
	for _, operation := range []string{"prepare", "unprepare"} {
		t.Run(operation, func(t *testing.T) {
			t.Parallel()
			var halfway atomic.Int32
			t.Cleanup(func() {
				if t.Logf("%d kills met the claim halfway", halfway.Load()); halfway.Load() == 0 {
					t.Error("no kill met the claim halfway")
				}
			})
			for count := range newScene(t, operation).changes(math.MaxInt) {
				t.Run(fmt.Sprint("change ", count+1), func(t *testing.T) {
					t.Parallel()
					s := newScene(t, operation)
					s.changes(count + 1)
					s.plugin.kill()
					intent := s.halfway()
					if intent {
						halfway.Add(1)
					}
					// A prepared claim that is gone is left to kubelet for long.
					s.recover(intent && count%2 == 0)
				})
			}
		})
	}
}

// changes carries the operation out until it is done or that many changes of
// files are seen, and returns how many were.
func (s *scene) changes(limit int) (seen int) {
	s.Helper()
	for _, function := range slices.Concat(changesOf["prepare"], changesOf["unprepare"], []string{"nvmlDeviceSetComputeMode", "nvmlSimDeviceSetTimeslice"}) {
		s.must(s.gpu.SetLatency(function, changeOfGPU))
	}
	watcher, err := fsnotify.NewWatcher()
	s.must(err)
	s.Cleanup(func() { watcher.Close() })
	dirs := []string{s.state() + "/claims", s.path("cdi"), s.state() + "/locks"}
	if s.supervisor != nil {
		dirs = append(dirs, s.path("mps"), s.path("mps/daemons"), s.path("mps/status"))
	}
	for _, dir := range dirs {
		s.must(watcher.Add(dir))
	}
	s.done = s.begin()
	for seen < limit {
		select {
		case <-watcher.Events:
			seen++
		case <-s.done:
			return seen
		}
	}
	return seen
}

// During a rolling update, two processes work on the same GPUs; one is killed
// while it makes a partition, and the other goes on at once.
func TestTwoProcessesOfWhichOneIsKilled(t *testing.T) {
	t.Parallel()
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
		t.Errorf("%d claims were not prepared, but only 3 were the killed process's", failed)
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

// While the API server does not tell that claims are gone, they stay; kubelet
// needs no API server to unprepare them.
func TestTheAPIServerIsAwayAtTheStart(t *testing.T) {
	t.Parallel()
	s := newScene(t, "unprepare")
	s.plugin.kill()
	s.remove(s.claim)
	s.setAway(true)
	s.plugin = s.start()
	s.must(s.prepared(s.other, s.claim))
	s.must(s.order(s.foreign))
	fixture.Eventually(t, "the claim's end", func() error { return s.plugin.unprepare(s.within(), s.claim) })
	s.must(s.order(s.foreign))
	s.must(s.prepared(s.other))
}

// After a reset of its GPUs, the machine has no instances, and the records are
// of this boot: kubelet asks for its claims again.
func TestGPUsThatWereReset(t *testing.T) {
	t.Parallel()
	s := newScene(t, "unprepare")
	s.plugin.kill()
	s.must(s.gpu.Reset(0))
	s.must(s.gpu.Reset(1))
	s.plugin = s.start()
	s.prepareBoth(s.foreign)
}

// After a reboot the machine has no instances, not even an administrator's, the
// records are of another boot, and the CDI files are gone with /run.
func TestAReboot(t *testing.T) {
	t.Parallel()
	s := newScene(t, "unprepare")
	s.plugin.kill()
	s.ageRecords()
	s.must(s.gpu.Reboot())
	s.must(os.RemoveAll(s.path("cdi")))
	s.plugin = s.start()
	fixture.Eventually(t, "the end of the records", func() error { return s.prepared() })
	s.must(s.order(nil))
	s.prepareBoth(nil)
}

// ageRecords makes all records those of an earlier boot.
func (s *scene) ageRecords() {
	s.Helper()
	records, err := journal.Open(s.state() + "/claims")
	s.must(err)
	all, _, err := records.List()
	s.must(err)
	for _, record := range all {
		record.BootID = "an earlier one"
		s.must(records.Put(s.Context(), record))
	}
}

// prepareBoth is kubelet's work when it starts the claims' pods again.
func (s *scene) prepareBoth(foreign []string) {
	s.Helper()
	s.must(s.plugin.prepare(s.within(), s.claim))
	s.must(s.plugin.prepare(s.within(), s.other))
	s.must(s.order(foreign))
	s.must(s.prepared(s.other, s.claim))
}
