package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

const quiet = 5 * time.Minute

// ward is a machine whose GPUs are watched.
type ward struct {
	*testing.T
	machine *model.Machine
	library *nvml.Library
	gpus    []gpu.GPU
	options Options
	monitor *Monitor
	repair  func(context.Context)
	stop    func()

	mu       sync.Mutex
	reported []string
	stalls   int
	changes  []time.Time
	asked    int
}

func newWard(t *testing.T, machine string) *ward {
	t.Helper()
	return newWardOf(t, fixture.File(t, machine))
}

func newWardOf(t *testing.T, file model.File) *ward {
	t.Helper()
	w := &ward{T: t, machine: fixture.Machine(t, file), repair: func(context.Context) {}}
	w.library = fixture.Library(t, w.machine)
	node, _, err := w.library.Discover()
	w.must(err)
	w.gpus = node.GPUs
	w.options = Options{
		File: filepath.Join(t.TempDir(), "health.json"), BootID: "boot-1", Quiet: quiet,
		Repair: func(ctx context.Context) { w.repair(ctx) },
		Asked: func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.asked++
		},
		Changed: func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.changes = append(w.changes, time.Now())
		},
		Stalled: func(context.Context, time.Duration) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.stalls++
		},
		Notify: func(_ context.Context, change Change) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, f := range change.Faults {
				w.reported = append(w.reported, fmt.Sprintf("fault %s=%s", f.Condition, f.Value))
			}
			for _, n := range change.Notes {
				w.reported = append(w.reported, "note "+n.Words)
			}
			for _, f := range change.Over {
				w.reported = append(w.reported, fmt.Sprintf("over %s=%s", f.Condition, f.Value))
			}
		},
	}
	t.Cleanup(func() {
		w.stop()
		w.must(w.library.Close())
	})
	return w
}

func (w *ward) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// start starts a process that watches.
func (w *ward) start() {
	w.Helper()
	w.monitor = New(w.options)
	w.monitor.Load(w.Context())
	w.watch(w.library)
}

func (w *ward) watch(gpus GPUs) {
	w.Helper()
	w.monitor.See(w.gpus, nil)
	w.stop = fixture.Background(w.Context(), w, func(ctx context.Context) error { return w.monitor.Run(ctx, gpus) })
}

// expect compares the faults of a GPU some seconds later.
func (w *ward) expect(index int, want ...string) {
	w.Helper()
	time.Sleep(3 * time.Second)
	if got := w.faults(index); !slices.Equal(got, want) {
		w.Errorf("GPU %d has the faults %q, want %q", index, got, want)
	}
}

func (w *ward) faults(index int) (faults []string) {
	for _, f := range w.monitor.Record(w.gpus[index].UUID).Faults {
		faults = append(faults, fmt.Sprintf("%s=%s %s", f.Condition, f.Value, f.Severity))
	}
	return faults
}

func (w *ward) stallsReported() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stalls
}

func (w *ward) reports() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.reported)
}

func TestAFaultComesAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t, "p5.48xlarge")
		w.start()
		w.expect(2)
		w.must(w.machine.SetCondition(2, model.Condition{RecoveryAction: "node-reboot"}))
		w.must(w.machine.Inject(model.XID(2, 79)))
		w.expect(2, "xid=79 dead")
		w.expect(3)
		w.must(w.machine.SetCondition(2, model.Condition{}))
		time.Sleep(quiet - time.Minute)
		w.expect(2, "xid=79 dead")
		time.Sleep(2 * time.Minute)
		w.expect(2)
		if got := w.reports(); !slices.Equal(got, []string{"fault xid=79", "over xid=79"}) {
			t.Errorf("reported %q", got)
		}
	})
}

// Each round of polls is reported, so that the driver may rest after it, and there is one per minute.
func TestRoundsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t, "g5.12xlarge")
		w.start()
		time.Sleep(10*askInterval + askInterval/2)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.asked < 10 || w.asked > 11 {
			t.Errorf("%d rounds were reported in 10 minutes, want one per minute", w.asked)
		}
	})
}

func TestErrorsOfApplicationsAreNoFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, machine := range []string{"p5.48xlarge", "p4d.24xlarge"} {
			w := newWard(t, machine)
			w.start()
			w.expect(0)
			w.must(w.machine.Inject(model.XID(0, 13)))
			w.must(w.machine.Inject(model.XID(0, 43)))
			w.expect(0)
			if got := w.reports(); len(got) != 2 || !strings.Contains(got[0], "XID 13") || !strings.Contains(got[1], "XID 43") {
				t.Errorf("reported %q", got)
			}
			w.stop()
		}
	})
}

// A fault without a listener is found by polling.
func TestAFaultFromBeforeTheStartIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t, "p5.48xlarge")
		w.must(w.machine.SetCondition(1, model.Condition{RecoveryAction: "drain-and-reset"}))
		w.start()
		w.expect(1, "recovery-action=drain-and-reset drain")
	})
}

// A restart neither clears a fault nor makes it younger; a reboot clears it where the GPU is well.
func TestARestartRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t, "p4d.24xlarge") // its driver knows no recovery action
		w.start()
		w.expect(0)
		w.must(w.machine.Inject(model.XID(0, 119)))
		w.expect(0, "xid=119 drain")
		since := w.monitor.Record(w.gpus[0].UUID).Faults[0].Since
		w.stop()
		time.Sleep(time.Hour)
		w.start()
		w.expect(0, "xid=119 drain")
		time.Sleep(time.Hour)
		w.expect(0, "xid=119 drain")
		if got := w.monitor.Record(w.gpus[0].UUID).Faults[0].Since; !got.Equal(since) {
			t.Errorf("it is since %v, and was since %v", got, since)
		}
		if got := w.reports(); !slices.Equal(got, []string{"fault xid=119"}) {
			t.Errorf("reported %q", got)
		}
		w.stop()
		next := New(w.options)
		next.Load(t.Context())
		if got := next.Remembered(); len(got) != len(w.gpus) {
			t.Errorf("the next process remembers %v", got)
		}
		w.options.BootID = "boot-2"
		w.start()
		time.Sleep(2 * time.Minute)
		w.expect(0)
	})
}

// A repair by an administrator ends the faults of that GPU that the driver does not report as over.
func TestARepairByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t, "p4d.24xlarge") // its driver knows no recovery action
		w.start()
		w.expect(0)
		for i := range 2 {
			w.must(w.machine.Inject(model.XID(i, 119)))
			w.expect(i, "xid=119 drain")
		}
		repaired := map[string]time.Time{w.gpus[0].UUID: time.Now(), "GPU-of-another-node": time.Now()}
		w.monitor.Repaired(repaired)
		w.expect(0)
		w.expect(1, "xid=119 drain")
		if got := w.reports(); !slices.Equal(got, []string{"fault xid=119", "fault xid=119", "over xid=119"}) {
			t.Errorf("reported %q", got)
		}
		w.must(w.machine.Inject(model.XID(0, 119)))
		w.expect(0, "xid=119 drain")
		w.stop()
		w.start()
		w.monitor.Repaired(repaired)
		w.expect(0, "xid=119 drain")
	})
}

// A fault that has just ended is not over because of a restart.
func TestARestartDoesNotEndAFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t, "p5.48xlarge")
		w.must(w.machine.SetCondition(0, model.Condition{RecoveryAction: "gpu-reset"}))
		w.start()
		w.expect(0, "recovery-action=gpu-reset drain")
		time.Sleep(time.Hour)
		w.must(w.machine.SetCondition(0, model.Condition{}))
		w.stop()
		w.start()
		w.expect(0, "recovery-action=gpu-reset drain")
		time.Sleep(quiet + 2*time.Minute)
		w.expect(0)
	})
}

// GPUs come and go while those are asked that are there.
func TestGPUsComeAndGoWhileTheyAreAsked(t *testing.T) {
	m := New(Options{Quiet: quiet})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 2000 {
			m.See(nil, map[string]error{fmt.Sprint(i % 3): errors.New("lost")})
		}
	}()
	for range 2000 {
		for uuid, err := range m.missing() {
			if err == nil {
				t.Fatalf("GPU %s is missing for no reason", uuid)
			}
		}
	}
	<-done
}

func TestALostGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t, "g5.12xlarge")
		w.start()
		w.expect(1)
		w.must(w.machine.Lose(1))
		w.expect(1, "gpu-lost= dead")
		w.expect(0)
		w.monitor.See(slices.Delete(slices.Clone(w.gpus), 1, 2), map[string]error{w.gpus[1].UUID: errors.New("GPU 1 cannot be read")})
		w.expect(1, "gpu-lost= dead")
		others := slices.Delete(slices.Clone(w.gpus), 0, 2)
		w.monitor.See(others, map[string]error{w.gpus[0].UUID: nvml.ErrSilent, w.gpus[1].UUID: errors.New("GPU 1 cannot be read")})
		w.expect(0)
		time.Sleep(apartTime)
		w.expect(0, "unresponsive= dead")
		w.expect(1, "gpu-lost= dead")
		w.must(w.machine.Return(1))
		_, _, err := w.library.Discover()
		w.must(err)
		w.monitor.See(w.gpus, nil)
		w.expect(1, "gpu-lost= dead")
		time.Sleep(quiet + time.Minute)
		w.expect(1)
	})
}

// deaf is a driver one of whose GPUs does not answer until it is released.
type deaf struct {
	GPUs
	uuid    string
	release chan struct{}
	err     error
}

func (d deaf) Health(uuid string) (health.Level, error) {
	if uuid != d.uuid {
		return d.GPUs.Health(uuid)
	}
	if d.release != nil {
		<-d.release
	}
	return health.Level{Action: health.ActionNone}, d.err
}

func TestACallThatDoesNotReturnIsThatGPUsFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t, "g5.12xlarge")
		release := make(chan struct{})
		w.monitor = New(w.options)
		w.watch(deaf{GPUs: w.library, uuid: w.gpus[2].UUID, release: release})
		time.Sleep(patience)
		w.expect(2)
		time.Sleep(lateInterval)
		w.expect(2, "unresponsive= dead")
		w.expect(0)
		w.must(w.machine.SetCondition(0, model.Condition{RemapPending: true, RecoveryAction: "gpu-reset"}))
		time.Sleep(time.Minute)
		w.expect(0, "memory=row-remap-pending degraded", "recovery-action=gpu-reset drain")
		close(release)
		time.Sleep(2*quiet + 2*time.Minute)
		w.expect(2)
	})
}

func TestAnswersThatMakeNoSense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t, "g5.12xlarge")
		w.must(w.machine.Fail(model.Failure{Function: "nvmlDeviceGetFieldValues", Return: 999, GPU: new(int)}))
		w.start()
		w.expect(0)
		time.Sleep(attempts * askInterval)
		w.expect(0, "gpu-lost= dead")
		w.expect(1)
	})
}

// A storm of events does not become a storm of writes, and the first cause is reported once.
func TestAStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t, "p5.48xlarge")
		w.start()
		w.expect(0)
		w.must(w.machine.SetCondition(0, model.Condition{RecoveryAction: "gpu-reset"}))
		before := time.Now()
		for i := range 5000 {
			w.must(w.machine.Inject(model.XID(i%8, uint64(119+i%2))))
			time.Sleep(time.Millisecond)
		}
		w.expect(0, "xid=119 drain")
		w.mu.Lock()
		defer w.mu.Unlock()
		writes := slices.DeleteFunc(slices.Clone(w.changes), func(at time.Time) bool { return at.Before(before) || at.Sub(before) > 5*time.Second })
		if len(writes) > 2 {
			t.Errorf("changed %d times in 5 s, want 2 at most", len(writes))
		}
	})
}

// Events of unwatched GPUs are counted, and otherwise ignored.
func TestAnEventOfAnUnknownGPU(t *testing.T) {
	m := New(Options{File: filepath.Join(t.TempDir(), "health.json"), Quiet: quiet})
	m.receive(nvml.Report{UUID: "GPU-unknown", Event: health.Event{XID: 79}})
	if len(m.records) > 0 || len(m.gpus) > 0 {
		t.Errorf("got %v and %v", m.records, m.gpus)
	}
}

// A file that cannot be read is forgotten, and replaced.
func TestAFileThatCannotBeRead(t *testing.T) {
	for _, content := range []string{"", "{", `{"gpus":[]}`, `{"gpus":{"GPU-1":{"faults":"many"}}}`} {
		m := New(Options{File: filepath.Join(t.TempDir(), "health.json"), BootID: "boot-1", Quiet: quiet, Notify: func(context.Context, Change) {}})
		if err := os.WriteFile(m.File, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		m.Load(t.Context())
		m.See([]gpu.GPU{{UUID: "GPU-1"}}, nil)
		if !m.judge(t.Context(), "GPU-1", health.Facts{Reach: health.Gone}) {
			t.Error("nothing has changed")
		}
		m.save(t.Context())
		next := New(m.Options)
		next.Load(t.Context())
		if got := len(next.Record("GPU-1").Faults); got != 1 {
			t.Errorf("after %q, %d faults are kept, want 1", content, got)
		}
	}
}

// Whoever repairs GPUs does so while none is asked. After a reset the GPU is asked at once, and a fault
// that only the table knows can be over. What was tried outlives the process.
func TestARepair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t, "p4d.24xlarge") // its driver knows no recovery action
		uuid := w.gpus[0].UUID
		attempt := health.Resets{Tried: 1, Persistent: true}
		w.repair = func(ctx context.Context) {
			record, sick := w.monitor.Known()[uuid]
			if sick && record.Resets.Tried == 0 {
				w.monitor.KeepResets(ctx, uuid, attempt)
			}
		}
		w.start()
		w.expect(0)
		w.must(w.machine.Inject(model.XID(0, 119)))
		w.expect(0, "xid=119 drain")
		w.stop()
		w.repair = func(context.Context) {}
		w.start()
		w.expect(0, "xid=119 drain")
		if got := w.monitor.Known()[uuid].Resets; got != attempt {
			t.Errorf("the next process knows of the attempts %+v, want %+v", got, attempt)
		}
		time.Sleep(time.Hour)
		w.expect(0, "xid=119 drain")
		w.monitor.Restored(uuid)
		time.Sleep(quiet + 2*time.Minute)
		w.expect(0)
		if got := w.monitor.Known()[uuid].Resets; got != (health.Resets{Persistent: true}) {
			t.Errorf("after the fault the attempts are %+v, want none, and that the persistence mode is to come back", got)
		}
	})
}

// A driver that answers about no GPU for a while, as while it recovers one, is one suspect and not eight: no GPU of the
// machine is taken for dead, and the node gets an Event. If it never answers again, no GPU is of use.
func TestAStallOfTheDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t, "p5.48xlarge")
		w.start()
		w.expect(0)
		for _, length := range []time.Duration{11 * time.Second, 45 * time.Second, 2 * time.Minute} {
			before := w.stallsReported()
			w.must(w.machine.Stall(length))
			w.must(w.machine.Inject(model.XID(3, 13)))
			for range 60 {
				time.Sleep(5 * time.Second)
				for i := range w.gpus {
					if got := w.faults(i); len(got) > 0 {
						t.Fatalf("in a stall of %s, GPU %d has the faults %q", length, i, got)
					}
				}
			}
			if told := w.stallsReported() - before; length > patience && told != 1 || told > 1 {
				t.Errorf("a stall of %s was reported %d times", length, told)
			}
		}
		w.must(w.machine.Stall(20 * time.Minute))
		time.Sleep(15 * time.Minute)
		for i := range w.gpus {
			w.expect(i, "unresponsive= dead")
		}
		time.Sleep(10*time.Minute + quiet)
		for i := range w.gpus {
			w.expect(i)
		}
	})
}

// While the driver stalls nothing can be read, and at its end GPUs are read again one after the other. None of them is dead.
func TestGPUsThatCannotBeReadInAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t, "p5.48xlarge")
		w.start()
		w.expect(0)
		w.must(w.machine.Stall(2 * time.Minute))
		missing := map[string]error{}
		for _, g := range w.gpus {
			missing[g.UUID] = nvml.ErrSilent
		}
		for range 10 {
			w.monitor.See(nil, missing)
			time.Sleep(15 * time.Second)
		}
		delete(missing, w.gpus[7].UUID)
		w.monitor.See(w.gpus[7:], missing)
		time.Sleep(time.Minute)
		w.monitor.See(w.gpus, nil)
		time.Sleep(10 * time.Minute)
		if got := w.reports(); len(got) > 0 {
			t.Errorf("reported %q", got)
		}
	})
}

// In a rolling update two processes write the file. What only one has seen is kept by the other, and what one has ended does
// not come back when the other writes it once more.
func TestTwoProcessesWriteTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		options := Options{File: filepath.Join(t.TempDir(), "health.json"), BootID: "boot-1", Quiet: quiet, Notify: func(context.Context, Change) {}}
		start := func() *Monitor {
			m := New(options)
			m.Load(t.Context())
			m.See([]gpu.GPU{{UUID: "GPU-1"}}, nil)
			return m
		}
		judge := func(m *Monitor, facts health.Facts) {
			facts.Reach = health.Answers
			m.judge(t.Context(), "GPU-1", facts)
			m.save(t.Context())
			time.Sleep(time.Second)
		}
		expect := func(m *Monitor, want int) {
			t.Helper()
			if got := len(m.Record("GPU-1").Faults); got != want {
				t.Errorf("the process knows %d faults, want %d", got, want)
			}
		}
		xid := health.Facts{Events: []health.Event{{XID: 119}}}
		older, newer := start(), start()
		judge(newer, xid)
		judge(older, health.Facts{})
		expect(older, 1)
		expect(start(), 1)

		judge(older, health.Facts{Restored: true})
		time.Sleep(quiet)
		judge(older, health.Facts{})
		expect(older, 0)
		newer.save(t.Context()) // it has not seen that the GPU was restored
		judge(older, health.Facts{})
		expect(older, 0)

		judge(newer, xid)
		judge(older, health.Facts{})
		expect(older, 1)
	})
}
