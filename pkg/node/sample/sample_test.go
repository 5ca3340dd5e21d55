package sample

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/test/fixture"
)

// node has devices with the readings of a test.
type node struct {
	mu      sync.Mutex
	answers map[string]answer
	units   []Unit
	// open are the meters that are not closed, by UUID; opens counts all.
	open  map[string]int
	opens int
	// reads and senses count calls of meters, idles the rounds that ended.
	reads, senses, idles int
}

type answer struct {
	usage   gpu.Usage
	sensors gpu.Sensors
	// err is of a read, unsensed of the sensors.
	err, unsensed error
	// hangs, where it is set, is how long the device does not answer: until it is closed.
	hangs chan struct{}
}

func (n *node) set(uuid string, a answer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.answers[uuid] = a
}

func (n *node) has(units ...Unit) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.units = units
}

func (n *node) seen() []Unit {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.units
}

func (n *node) idle() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.idles++
}

func (n *node) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.reads
}

func (n *node) opened() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(n.open))
}

func (n *node) meter(uuid string) Meter {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open[uuid]++
	n.opens++
	return meter{n, uuid}
}

type meter struct {
	node *node
	uuid string
}

func (m meter) Read() (gpu.Usage, error) {
	m.node.mu.Lock()
	m.node.reads++
	a := m.node.answers[m.uuid]
	m.node.mu.Unlock()
	if a.hangs != nil {
		<-a.hangs
	}
	return a.usage, a.err
}

func (m meter) Sense() (gpu.Sensors, error) {
	m.node.mu.Lock()
	defer m.node.mu.Unlock()
	m.node.senses++
	return m.node.answers[m.uuid].sensors, m.node.answers[m.uuid].unsensed
}

func (m meter) Close() error {
	m.node.mu.Lock()
	defer m.node.mu.Unlock()
	if m.node.open[m.uuid]--; m.node.open[m.uuid] == 0 {
		delete(m.node.open, m.uuid)
	}
	return nil
}

func busy(percent float64, memory uint64) answer {
	return answer{usage: gpu.Usage{Utilization: ptr.To(percent / 100), Memory: &gpu.MemoryUsage{Used: memory, Total: 80}}}
}

func device(name, board, uuid string, claims ...string) Device {
	return Device{Name: name, GPU: board, UUID: uuid, Claims: claims}
}

// rig is a sampler that runs in a bubble of synctest.
type rig struct {
	*Sampler
	*node
	registry metrics.KubeRegistry
	logs     func() string
	stop     func()
}

func run(t *testing.T) *rig {
	t.Helper()
	r := &rig{Sampler: New(), node: &node{answers: map[string]answer{}, open: map[string]int{}}, registry: metrics.NewKubeRegistry()}
	r.registry.CustomMustRegister(r.Sampler)
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	r.logs = logger.GetSink().(ktesting.Underlier).GetBuffer().String
	r.stop = fixture.Background(klog.NewContext(t.Context(), logger), t, func(ctx context.Context) error {
		return r.Run(ctx, Hardware{Open: r.meter, Units: r.seen, Idle: r.idle})
	})
	synctest.Wait() // for the first round, which has nothing to read
	return r
}

// after lets time pass, and what is due then happen.
func after(d time.Duration) {
	time.Sleep(d) // of the bubble
	synctest.Wait()
}

// shown are the metrics of devices, one a line; of the time of a sample, how old it is.
func (r *rig) shown(t *testing.T) string { return r.series(t, "mica_device_", "device") }

// series are the metrics with a prefix as `labels name value`, the labels as far as they are wanted and not empty.
func (r *rig) series(t *testing.T, prefix string, wanted ...string) string {
	t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, family := range families {
		short, is := strings.CutPrefix(family.GetName(), prefix)
		if !is {
			continue
		}
		for _, m := range family.GetMetric() {
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			if family.GetName() == gpu.MetricSampled {
				value = time.Since(time.UnixMilli(int64(value * 1000))).Seconds()
			}
			var labels []string
			for _, label := range m.GetLabel() {
				if slices.Contains(wanted, label.GetName()) && label.GetValue() != "" {
					labels = append(labels, label.GetValue())
				}
			}
			lines = append(lines, fmt.Sprintf("%s %s %.4g", strings.Join(labels, " "), short, value))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (r *rig) wantShown(t *testing.T, what string, want ...string) {
	t.Helper()
	if got := r.shown(t); got != strings.Join(want, "\n") {
		t.Errorf("%s, there is\n%s\nwant\n%s", what, got, strings.Join(want, "\n"))
	}
}

func TestTheMeanOfTheLastSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t)
		defer r.stop()
		r.node.set("GPU-a", busy(0, 10))
		r.Set([]Device{device("gpu-0", "GPU-a", "GPU-a", "claim")})
		after(interval)
		r.wantShown(t, "after a round", "gpu-0 memory_total_bytes 80", "gpu-0 memory_used_bytes 10", "gpu-0 sample_timestamp_seconds 0", "gpu-0 utilization_ratio 0")
		after(time.Second)
		r.node.set("GPU-a", busy(100, 20))
		after(2 * time.Second) // one sample of 0, one of 100
		r.wantShown(t, "after a while", "gpu-0 memory_total_bytes 80", "gpu-0 memory_used_bytes 20", "gpu-0 sample_timestamp_seconds 1", "gpu-0 utilization_ratio 0.5")
		after(14 * time.Second)
		r.wantShown(t, "after the window", "gpu-0 memory_total_bytes 80", "gpu-0 memory_used_bytes 20", "gpu-0 sample_timestamp_seconds 1", "gpu-0 utilization_ratio 1")
		if n := len(r.gpus["GPU-a"].series[0].samples); n > 9 {
			t.Errorf("%d samples are kept", n)
		}
	})
}

// A value that a device does not report is absent, not 0.
func TestValuesThatADeviceDoesNotReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t)
		defer r.stop()
		r.node.set("MIG-a", answer{usage: gpu.Usage{Memory: &gpu.MemoryUsage{Used: 1, Total: 5}}})
		r.node.set("GPU-b", answer{usage: gpu.Usage{Utilization: ptr.To(0.25)}})
		r.node.set("GPU-c", answer{})
		r.Set([]Device{device("gpu-0-mig", "GPU-a", "MIG-a", "1"), device("gpu-1", "GPU-b", "GPU-b", "2"), device("gpu-2", "GPU-c", "GPU-c", "3")})
		after(3 * time.Second)
		r.wantShown(t, "of what they tell", "gpu-0-mig memory_total_bytes 5", "gpu-0-mig memory_used_bytes 1", "gpu-0-mig sample_timestamp_seconds 1",
			"gpu-1 sample_timestamp_seconds 1", "gpu-1 utilization_ratio 0.25")
	})
}

func TestNothingIsReadWhileNothingIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t)
		defer r.stop()
		after(time.Hour)
		if n := r.count(); n != 0 {
			t.Errorf("%d reads without a device", n)
		}
		r.node.set("GPU-a", busy(50, 1))
		r.Set([]Device{device("gpu-0", "GPU-a", "GPU-a", "claim")})
		after(time.Hour)
		if n := r.count(); n != 1800 {
			t.Errorf("%d reads in an hour, want one every other second", n)
		}
		r.Set(nil)
		r.wantShown(t, "after the claim")
		after(10 * time.Second)
		n := r.count()
		after(time.Hour)
		if open := r.opened(); r.count() != n || len(open) != 0 || len(r.gpus) != 0 {
			t.Errorf("%d more reads, open meters %q, %d GPUs", r.count()-n, open, len(r.gpus))
		}
	})
}

// A claim's figures are not those of the claim that had the device before.
func TestWhatIsRememberedGoesWithTheClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t)
		defer r.stop()
		utilization := func() string {
			for line := range strings.Lines(r.shown(t)) {
				if value, is := strings.CutPrefix(line, "gpu-0-mps utilization_ratio "); is {
					return value
				}
			}
			return ""
		}
		r.node.set("GPU-a", busy(100, 1))
		r.Set([]Device{device("gpu-0-mps", "GPU-a", "GPU-a", "first")})
		after(3 * time.Second)
		r.node.set("GPU-a", busy(0, 1))
		r.Set([]Device{device("gpu-0-mps", "GPU-a", "GPU-a", "first", "second")})
		r.Set([]Device{device("gpu-0-mps", "GPU-a", "GPU-a", "second")})
		after(2 * time.Second)
		if got := utilization(); got != "0.5" || r.opens != 1 {
			t.Errorf("the utilization is %s, of %d meters; a claim has had the device all the time", got, r.opens)
		}
		r.Set([]Device{device("gpu-0-mps", "GPU-a", "GPU-a", "third")})
		if got := utilization(); got != "" {
			t.Errorf("the utilization is %s before the claim has been sampled", got)
		}
		after(2 * time.Second)
		if got := utilization(); got != "0" || r.opens != 2 {
			t.Errorf("the utilization is %s, of %d meters; want 0, of a meter that measures from now on", got, r.opens)
		}
		// A partition that was made anew has another UUID.
		r.Set([]Device{device("gpu-0-mps", "GPU-a", "MIG-b", "third")})
		after(4 * time.Second)
		if open := r.opened(); !slices.Equal(open, []string{"MIG-b"}) {
			t.Errorf("the open meters are %q", open)
		}
	})
}

// A GPU that does not answer delays neither the others nor Set.
func TestAGPUThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t)
		defer r.stop()
		hangs := make(chan struct{})
		r.node.set("GPU-a", busy(50, 1))
		r.node.set("GPU-b", busy(50, 1))
		both := []Device{device("gpu-0", "GPU-a", "GPU-a", "1"), device("gpu-1", "GPU-b", "GPU-b", "2")}
		r.Set(both)
		after(3 * time.Second)
		r.node.set("GPU-a", answer{hangs: hangs, usage: busy(50, 1).usage})
		after(time.Minute)
		r.wantShown(t, "while one hangs", "gpu-1 memory_total_bytes 80", "gpu-1 memory_used_bytes 1", "gpu-1 sample_timestamp_seconds 1", "gpu-1 utilization_ratio 0.5")
		if logs := r.logs(); strings.Count(logs, "does not answer") != 1 || !strings.Contains(logs, "GPU-a") {
			t.Errorf("it is not logged once:\n%s", logs)
		}
		r.Set(both[1:])
		r.Set(both)
		close(hangs)
		after(4 * time.Second)
		if got := r.shown(t); !strings.Contains(got, "gpu-0 utilization_ratio 0.5") {
			t.Errorf("the GPU answers again, and there is\n%s", got)
		}
		r.node.set("GPU-a", answer{hangs: make(chan struct{})})
		after(time.Minute)
		if logs := r.logs(); strings.Count(logs, "does not answer") != 2 {
			t.Errorf("it is not logged again:\n%s", logs)
		}
		r.node.mu.Lock()
		close(r.answers["GPU-a"].hangs)
		r.node.mu.Unlock()
	})
}

func TestTheEndDoesNotWaitForAGPUThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t)
		hangs := make(chan struct{})
		r.node.set("GPU-a", answer{hangs: hangs})
		r.Set([]Device{device("gpu-0", "GPU-a", "GPU-a", "1")})
		after(time.Minute)
		start := time.Now()
		r.stop()
		if took := time.Since(start); took != leaveAfter {
			t.Errorf("it took %s to end, want %s", took, leaveAfter)
		}
		if logs := r.logs(); !strings.Contains(logs, "Stopping before") {
			t.Errorf("it is not logged:\n%s", logs)
		}
		close(hangs)
	})
}

func TestAnErrorIsLoggedOnceWhileItLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t)
		defer r.stop()
		lost, half := errors.New("GPU is lost"), errors.New("no rates")
		r.node.set("GPU-a", busy(50, 1))
		r.Set([]Device{device("gpu-0", "GPU-a", "GPU-a", "1")})
		after(3 * time.Second)
		r.node.set("GPU-a", answer{err: lost})
		after(10 * time.Second)
		r.wantShown(t, "for a while", "gpu-0 memory_total_bytes 80", "gpu-0 memory_used_bytes 1", "gpu-0 sample_timestamp_seconds 11", "gpu-0 utilization_ratio 0.5")
		after(time.Minute)
		r.wantShown(t, "with an error that lasts")
		r.node.set("GPU-a", answer{err: half, usage: gpu.Usage{Memory: &gpu.MemoryUsage{Used: 2, Total: 80}}})
		after(2 * time.Second)
		r.wantShown(t, "with half an answer", "gpu-0 memory_total_bytes 80", "gpu-0 memory_used_bytes 2", "gpu-0 sample_timestamp_seconds 1")
		r.node.set("GPU-a", answer{err: lost})
		after(time.Minute)
		logs := r.logs()
		if strings.Count(logs, lost.Error()) != 2 || strings.Count(logs, half.Error()) != 1 || !strings.Contains(logs, `devices=["gpu-0"]`) {
			t.Errorf("each is not logged once while it lasts:\n%s", logs)
		}
	})
}

// Sensors are read less often than usage, and a broken one is logged once all the same.
func TestABrokenSensorIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t)
		defer r.stop()
		r.has(Unit{GPU: "GPU-a", UUID: "GPU-a"})
		broken := busy(50, 1)
		broken.sensors.Power, broken.unsensed = ptr.To(70.0), errors.New("no temperature")
		r.node.set("GPU-a", broken)
		r.Set([]Device{device("gpu-0", "GPU-a", "GPU-a", "1")})
		after(time.Minute)
		if logs := r.logs(); strings.Count(logs, "no temperature") != 1 {
			t.Errorf("it is not logged once:\n%s", logs)
		}
		if got := r.series(t, "mica_gpu_"); !strings.Contains(got, "power_watts 70") {
			t.Errorf("the other sensors are not shown: %s", got)
		}
	})
}

// Two series of one name would make the registry refuse all of them.
func TestANameIsSampledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t)
		defer r.stop()
		r.node.set("MIG-a", busy(10, 1))
		r.node.set("MIG-b", busy(90, 1))
		r.Set([]Device{device("gpu-0-mig", "GPU-a", "MIG-a", "1"), device("gpu-0-mig", "GPU-a", "MIG-b", "2")})
		after(3 * time.Second)
		r.wantShown(t, "of the first", "gpu-0-mig memory_total_bytes 80", "gpu-0-mig memory_used_bytes 1", "gpu-0-mig sample_timestamp_seconds 1", "gpu-0-mig utilization_ratio 0.1")
	})
}

// gpuLabels are the labels of GPUs and GPU instances in the order of their names.
var gpuLabels = []string{"GPU_I_ID", "GPU_I_PROFILE", "UUID", "device", "gpu", "modelName", "namespace", "pod"}

func (r *rig) wantUnits(t *testing.T, what string, want ...string) {
	t.Helper()
	if got := r.series(t, "mica_gpu_", gpuLabels...); got != strings.Join(want, "\n") {
		t.Errorf("%s, there is\n%s\nwant\n%s", what, got, strings.Join(want, "\n"))
	}
}

func TestGPUsThatNoClaimHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t)
		defer r.stop()
		both := []Unit{{GPU: "GPU-a", UUID: "GPU-a", Index: 0, Minor: 3, Product: "H100"}, {GPU: "GPU-b", UUID: "GPU-b", Index: 1, Minor: 4, Product: "L4"}}
		r.has(both...)
		a := busy(50, 1)
		a.sensors = gpu.Sensors{Temperature: ptr.To(41.0), Power: ptr.To(99.5), NVLink: &gpu.Traffic{Sent: 10, Received: 20}}
		r.node.set("GPU-a", a)
		r.node.set("GPU-b", answer{usage: gpu.Usage{Memory: &gpu.MemoryUsage{Used: 2, Total: 24}}, sensors: gpu.Sensors{NVLink: &gpu.Traffic{}}})
		after(time.Hour)
		r.wantShown(t, "of devices of claims")
		r.wantUnits(t, "of all GPUs",
			"GPU-a nvidia3 0 H100 memory_total_bytes 80", "GPU-a nvidia3 0 H100 memory_used_bytes 1",
			"GPU-a nvidia3 0 H100 nvlink_received_bytes_total 20", "GPU-a nvidia3 0 H100 nvlink_transmitted_bytes_total 10",
			"GPU-a nvidia3 0 H100 power_watts 99.5", "GPU-a nvidia3 0 H100 temperature_celsius 41",
			"GPU-a nvidia3 0 H100 utilization_ratio 0.5",
			"GPU-b nvidia4 1 L4 memory_total_bytes 24", "GPU-b nvidia4 1 L4 memory_used_bytes 2",
			"GPU-b nvidia4 1 L4 nvlink_received_bytes_total 0", "GPU-b nvidia4 1 L4 nvlink_transmitted_bytes_total 0",
		)
		// Each time NVML is closed again, and the driver can be unloaded.
		if r.reads != 2*120 || r.senses != 2*120 || r.idles != 120 {
			t.Errorf("%d reads of usage and %d of sensors in an hour, %d times all have answered; want one per GPU and 30 s", r.reads, r.senses, r.idles)
		}
		r.has(both[1])
		after(interval)
		if got := r.series(t, "mica_gpu_", "UUID"); strings.Contains(got, "GPU-a") || !strings.Contains(got, "GPU-b") || !slices.Equal(r.opened(), []string{"GPU-b"}) {
			t.Errorf("without the first GPU, the meters %q are open, and there is\n%s", r.opened(), got)
		}
	})
}

func TestAGPUWithPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t)
		defer r.stop()
		part := func(uuid, id string) Unit {
			return Unit{GPU: "GPU-a", UUID: uuid, Minor: 3, Product: "H100", Instance: id, Profile: "1g.10gb"}
		}
		r.has(Unit{GPU: "GPU-a", UUID: "GPU-a", Minor: 3, Product: "H100"}, part("MIG-a", "7"), part("MIG-b", "8"))
		r.node.set("GPU-a", answer{usage: gpu.Usage{Memory: &gpu.MemoryUsage{Used: 3, Total: 80}}, sensors: gpu.Sensors{Power: ptr.To(70.0)}})
		r.node.set("MIG-a", answer{usage: gpu.Usage{Utilization: ptr.To(0.5)}})
		r.node.set("MIG-b", answer{usage: gpu.Usage{Utilization: ptr.To(0.0)}})
		held := device("gpu-3-mig-1g10gb-19-0", "GPU-a", "MIG-a", "claim")
		held.Pods = []Pod{{"ml", "llm"}}
		r.Set([]Device{held})
		after(time.Minute + time.Second)
		want := []string{
			"7 1g.10gb GPU-a nvidia3 0 H100 ml llm utilization_ratio 0.5",
			"8 1g.10gb GPU-a nvidia3 0 H100 utilization_ratio 0",
			"GPU-a nvidia3 0 H100 memory_total_bytes 80", "GPU-a nvidia3 0 H100 memory_used_bytes 3", "GPU-a nvidia3 0 H100 power_watts 70",
		}
		r.wantUnits(t, "of the GPU and its partitions", want...)
		r.wantShown(t, "of the claim", "gpu-3-mig-1g10gb-19-0 sample_timestamp_seconds 1", "gpu-3-mig-1g10gb-19-0 utilization_ratio 0.5")
		// In a minute: the claim's partition every 2 s, the GPU, which is in use, every 10 s, and the rest every 30 s.
		if want := 30 + 6 + 2; r.reads < want || r.reads > want+3 || r.senses < 6 || r.senses > 7 {
			t.Errorf("%d reads of usage and %d of sensors, want about %d and 6", r.reads, r.senses, want)
		}
		for name, change := range map[string]func(*Device){
			"two pods of a claim":                  func(d *Device) { d.Pods = append(d.Pods, Pod{"ml", "other"}) },
			"another claim, whose pod is unknown":  func(d *Device) { d.Claims = append(d.Claims, "other") },
			"two shares of a claim with two pods":  func(d *Device) { d.Pods = []Pod{{"ml", "a"}, {"ml", "b"}, {"ml", "a"}, {"ml", "b"}} },
			"a claim whose pods are not known yet": func(d *Device) { d.Pods = nil },
		} {
			shared := held
			change(&shared)
			r.Set([]Device{shared})
			unnamed := slices.Clone(want)
			unnamed[0] = "7 1g.10gb GPU-a nvidia3 0 H100 utilization_ratio 0.5"
			r.wantUnits(t, "with "+name, unnamed...)
		}
		held.Claims, held.Pods = []string{"claim", "claim"}, []Pod{{"ml", "llm"}, {"ml", "llm"}}
		r.Set([]Device{held})
		r.wantUnits(t, "with two shares of a claim", want...)
	})
}

func TestAGPUWhoseFiguresAreTooOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t)
		defer r.stop()
		r.has(Unit{GPU: "GPU-a", UUID: "GPU-a"})
		hung := answer{hangs: make(chan struct{})}
		defer close(hung.hangs)
		a := busy(50, 1)
		a.sensors.Power = ptr.To(70.0)
		r.node.set("GPU-a", a)
		after(interval)
		r.node.set("GPU-a", hung)
		after(unitAge - interval)
		if got := r.series(t, "mica_gpu_"); !strings.Contains(got, "utilization_ratio 0.5") {
			t.Errorf("there is %q", got)
		}
		after(unitAge)
		r.wantUnits(t, "of a GPU that does not answer")
	})
}

func TestUnitsOfANode(t *testing.T) {
	machine := fixture.Machine(t, fixture.File(t, "p5.48xlarge"))
	if err := machine.SetMIGMode(2, true); err != nil {
		t.Fatal(err)
	}
	made, err := machine.CreateInstance(2, "3g.40gb", nil)
	if err != nil {
		t.Fatal(err)
	}
	node, _, err := fixture.Library(t, machine).Discover()
	if err != nil {
		t.Fatal(err)
	}
	units := Units(node.GPUs)
	if len(units) != 9 {
		t.Fatalf("got %+v, want 8 GPUs and an instance", units)
	}
	g := node.GPUs[2]
	whole := Unit{GPU: g.UUID, UUID: g.UUID, Index: 2, Minor: g.Minor, Product: "NVIDIA H100 80GB HBM3"}
	part := whole
	part.UUID, part.Instance, part.Profile = made.ComputeInstances[0].UUID, fmt.Sprint(made.ID), "3g.40gb"
	if units[2] != whole || units[3] != part {
		t.Errorf("got %+v and %+v, want %+v and %+v", units[2], units[3], whole, part)
	}
}
