package sample

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// partitioned is a machine of 8 GPUs that are all cut in seven, each partition with a claim of its own.
func partitioned(tb testing.TB) (*model.Machine, *Sampler, Hardware) {
	tb.Helper()
	machine := fixture.Machine(tb, fixture.File(tb, "p5.48xlarge"))
	library := fixture.Library(tb, machine)
	for index := range machine.GPUs() {
		if err := machine.SetMIGMode(index, true); err != nil {
			tb.Fatal(err)
		}
		for range 7 {
			if _, err := machine.CreateInstance(index, "1g.10gb", nil); err != nil {
				tb.Fatal(err)
			}
		}
	}
	node, _, err := library.Discover()
	if err != nil {
		tb.Fatal(err)
	}
	units := Units(node.GPUs)
	var held []Device
	for _, unit := range units {
		if unit.Instance != "" {
			held = append(held, Device{Name: fmt.Sprintf("gpu-%d-mig-%s", unit.Minor, unit.Instance), GPU: unit.GPU, UUID: unit.UUID, Claims: []string{unit.UUID}})
		}
	}
	s := New()
	s.see(units)
	s.Set(held)
	return machine, s, Hardware{
		Open:  func(uuid string) Meter { return library.Meter(uuid) },
		Units: func() []Unit { return units },
		Idle:  func() {},
	}
}

// BenchmarkRound is one round of samples in which all partitions are due, and in every fifth also the
// GPUs: what the plugin does every other second. %core is the CPU time of this process, including
// that of the simulated driver, as a part of one core. The real driver's time is not in it: a round
// has as many calls of it as TestCallsOfNVML counts.
func BenchmarkRound(b *testing.B) {
	_, s, hardware := partitioned(b)
	rounds := 0
	round := func() {
		for _, g := range s.gpus {
			for _, of := range g.series {
				of.begun = time.Time{}
				if of.entire() && rounds%5 > 0 {
					of.begun = time.Now()
				} else if of.entire() {
					of.sensed = time.Time{}
				}
			}
		}
		rounds++
		var readers sync.WaitGroup
		for _, t := range s.due(b.Context()) {
			readers.Go(func() { s.read(b.Context(), t, hardware) })
		}
		readers.Wait()
	}
	round() // the first one waits for counters
	rounds = 0
	b.ReportAllocs()
	before := cpuTime(b)
	for b.Loop() {
		round()
	}
	b.ReportMetric(100*(cpuTime(b)-before).Seconds()/float64(b.N)/interval.Seconds(), "%core")
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// The bound on calls bounds the time in the real driver, whatever a call takes.
func TestCallsOfNVML(t *testing.T) {
	for name, test := range map[string]struct {
		held bool
		want int
	}{
		// Each partition: its UUID, memory and counters. Each GPU: memory, utilization and three sensors.
		"all held": {true, 15*56*4 + 3*8*5},
		"all idle": {false, 56*4 + 8*5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				machine, s, hardware := partitioned(t)
				if !test.held {
					s.Set(nil)
				}
				stop := fixture.Background(t.Context(), t, func(ctx context.Context) error { return s.Run(ctx, hardware) })
				defer stop()
				after(time.Second + idleInterval) // the first reads have to open everything
				before := callsOf(t, machine)
				after(idleInterval)
				if got := callsOf(t, machine).Since(before); got.Total() > test.want {
					t.Errorf("%d calls of NVML in %s, want at most %d: %v", got.Total(), idleInterval, test.want, got)
				}
			})
		})
	}
}

func callsOf(t *testing.T, machine *model.Machine) model.Calls {
	t.Helper()
	state, err := machine.State()
	if err != nil {
		t.Fatal(err)
	}
	return state.Calls
}
