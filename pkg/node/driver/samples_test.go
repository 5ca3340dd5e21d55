package driver

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/account"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/sample"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func TestWhatIsHeldIsSampled(t *testing.T) {
	partition := gpu.Form{Base: gpu.BasePartition, Placement: gpu.Placement{Size: 1}}
	devices := held([]journal.Record{
		{ClaimUID: "1", Devices: []journal.Device{
			{Device: "gpu-0", UUID: "GPU-0"},
			{Device: "gpu-1", UUID: "GPU-1", AdminAccess: true},
			{Device: "gpu-2-mig-1g10gb-19-0", UUID: "GPU-2", Form: partition, AdminAccess: true}, // it does not exist
		}},
		{ClaimUID: "2", Devices: []journal.Device{
			{Device: "gpu-3-mps", UUID: "GPU-3", ShareID: "x"},
			{Device: "gpu-2-mig-1g10gb-19-3", UUID: "GPU-2", Form: partition, PartUUID: "MIG-a"},
			{Device: "gpu-2-mig-1g10gb-19-4", UUID: "GPU-2", Form: partition}, // it is gone
		}},
		{ClaimUID: "3", Namespace: "ml", Devices: []journal.Device{{Device: "gpu-3-mps", UUID: "GPU-3", ShareID: "y"}}},
		{ClaimUID: "4", Devices: []journal.Device{{Device: "gpu-2-mig-1g10gb-19-5-timeslice", UUID: "GPU-2", Form: partition, PartUUID: "MIG-b"}}},
	}, map[string]account.Claim{"3": {Pods: []string{"a", "b"}}})
	want := []sample.Device{
		{Name: "gpu-0", GPU: "GPU-0", UUID: "GPU-0", Claims: []string{"1"}},
		{Name: "gpu-3-mps", GPU: "GPU-3", UUID: "GPU-3", Claims: []string{"2", "3"}, Pods: []sample.Pod{{Namespace: "ml", Name: "a"}, {Namespace: "ml", Name: "b"}}},
		{Name: "gpu-2-mig-1g10gb-19-3", GPU: "GPU-2", UUID: "MIG-a", Claims: []string{"2"}},
		{Name: "gpu-2-mig-1g10gb-19-5-timeslice", GPU: "GPU-2", UUID: "MIG-b", Claims: []string{"4"}},
	}
	if !reflect.DeepEqual(devices, want) {
		t.Errorf("got  %+v\nwant %+v", devices, want)
	}
}

// figuresOf are the metrics of devices but when they were sampled, one a line.
func figuresOf(t *testing.T, registry metrics.KubeRegistry) []string {
	t.Helper()
	families, err := registry.Gather()
	must(t, err)
	var lines []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if slices.Contains([]string{gpu.MetricUtilization, gpu.MetricMemoryUsed, gpu.MetricMemoryTotal}, family.GetName()) {
				lines = append(lines, fmt.Sprintf("%s %s %.2g", m.GetLabel()[0].GetValue(), strings.TrimPrefix(family.GetName(), "mica_device_"), m.GetGauge().GetValue()))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// Devices are sampled, and claims and pods are known, from a claim's preparation on, also after a
// restart, until the claim goes.
func TestDevicesAreSampledWhileClaimsHoldThem(t *testing.T) {
	const partition = "gpu-2-mig-1g10gb-19-3"
	claim := usedBy(fixture.Claim("one", fixture.Result("a", "gpu-0"), fixture.Result("b", partition)), "pod")
	admin := fixture.Claim("admin", fixture.AdminResult("a", "gpu-1"))
	h := newHardware(t)
	use := func(gpu int, instance *int, percent int, memory uint64) {
		must(t, h.machine.SetUse(gpu, instance, model.Use{Utilization: &percent, MemoryBytes: &memory}))
	}
	use(0, nil, 80, 20e9)
	o := options(t, apiserver.New(claim, admin), h)
	d, k, stop := serving(t, o)
	for _, claim := range []*resourceapi.ResourceClaim{claim, admin} {
		k.prepared(claim)
	}
	id := h.machine.Instances(2)[0].ID
	use(2, &id, 35, 1e9)
	want := []string{
		"gpu-0 memory_total_bytes 8.6e+10", "gpu-0 memory_used_bytes 2e+10", "gpu-0 utilization_ratio 0.8",
		partition + " memory_total_bytes 1e+10", partition + " memory_used_bytes 1e+09", partition + " utilization_ratio 0.35",
	}
	wantInfos := []string{
		fmt.Sprintf("GPU_I_ID= UUID=%s claim=one device=gpu-0 namespace=%s pod=pod: 1", h.node.GPUs[0].UUID, claim.Namespace),
		fmt.Sprintf("GPU_I_ID=%d UUID=%s claim=one device=%s namespace=%s pod=pod: 1", id, h.node.GPUs[2].UUID, partition, claim.Namespace),
	}
	// The mean has the moments in which the partition was there and was not yet used.
	wantGPU := fmt.Sprintf("gpu_memory_used_bytes GPU_I_ID= GPU_I_PROFILE= UUID=%s device=nvidia0 gpu=0 modelName=%s namespace=%s pod=pod: 2e+10", h.node.GPUs[0].UUID, h.node.GPUs[0].ProductName, claim.Namespace)
	passing := func(line string) bool { return strings.HasPrefix(line, partition+" utilization_ratio") }
	shown := func(registry metrics.KubeRegistry, except func(string) bool, want, wantInfos []string) func() error {
		return func() error {
			got := slices.DeleteFunc(figuresOf(t, registry), except)
			if want := slices.DeleteFunc(slices.Clone(want), except); !slices.Equal(got, want) {
				return fmt.Errorf("got %q, want %q", got, want)
			}
			if got := infos(t, registry); !slices.Equal(got, wantInfos) {
				return fmt.Errorf("got the claims %q, want %q", got, wantInfos)
			}
			return nil
		}
	}
	registry := registryOf(d.Collectors()...)
	fixture.Eventually(t, "the figures of what is held", shown(registry, passing, want, wantInfos))
	if got := gauges(t, registry); !slices.Contains(got, "prepared_devices profile=1g.10gb type=mig: 1") || !slices.Contains(got, wantGPU) {
		t.Errorf("the prepared partition is not counted, or the GPU has not the pod: %q", got)
	}
	stop()

	d, _ = run(t, o)
	registry = registryOf(d.Collectors()...)
	all := func(string) bool { return false }
	fixture.Eventually(t, "the figures after a restart", shown(registry, all, want, wantInfos))
	k = register(t, o)
	k.unprepare(claim)
	fixture.Eventually(t, "the end of the figures", shown(registry, all, nil, nil)) // kubelet has its answer first
}

// A node that names no claims and pods names them nowhere.
func TestPodsAreNotNamed(t *testing.T) {
	claim := usedBy(fixture.Claim("one", fixture.Result("a", "gpu-0")), "pod")
	o := options(t, apiserver.New(claim), newHardware(t))
	o.Unnamed = true
	d, k, stop := serving(t, o)
	defer stop()
	k.prepared(claim)
	registry := registryOf(d.Collectors()...)
	fixture.Eventually(t, "the figures", func() error {
		if len(figuresOf(t, registry)) == 0 {
			return errors.New("there are none")
		}
		return nil
	})
	for _, line := range gauges(t, registry) {
		if strings.Contains(line, "pod=pod") {
			t.Error(line)
		}
	}
}

// GPUs that no claim has are sampled too, and NVML is closed again, so that the driver can be unloaded.
func TestIdleGPUsAreSampled(t *testing.T) {
	const name = "g5.12xlarge"
	machine := fixture.Machine(t, fixture.File(t, name))
	h := &hardware{machine: machine, library: fixture.Library(t, machine), node: fixture.Node(t, name)}
	for i, g := range h.node.GPUs {
		must(t, h.library.SetPersistence(g.UUID, true))
		must(t, machine.SetUse(i, nil, model.Use{Utilization: ptr.To(i + 1)}))
	}
	d, stop := run(t, options(t, apiserver.New(), h))
	defer stop()
	registry := registryOf(d.Collectors()...)
	fixture.Eventually(t, "the figures of all GPUs", func() error {
		for i, g := range h.node.GPUs {
			want := fmt.Sprintf("gpu_utilization_ratio GPU_I_ID= GPU_I_PROFILE= UUID=%s device=nvidia%d gpu=%d modelName=%s namespace= pod=: %v", g.UUID, g.Minor, i, g.ProductName, float64(i+1)/100)
			if got := gauges(t, registry); !slices.Contains(got, want) {
				return fmt.Errorf("no %s in %q", want, got)
			}
		}
		return nil
	})
	fixture.Eventually(t, "the end of NVML's session", func() error {
		state, err := machine.State()
		must(t, err)
		if n := state.GPUs[0].Clients; n > 0 {
			return fmt.Errorf("the GPU has %d clients", n)
		}
		return nil
	})
}

// Without sampling, no GPU is polled.
func TestUnsampledDevicesAreNotAsked(t *testing.T) {
	claim := fixture.Claim("c", fixture.Result("a", "gpu-0"))
	h := newHardware(t)
	o := options(t, apiserver.New(claim), h)
	o.Unsampled = true
	_, k, stop := serving(t, o)
	k.prepared(claim)
	stop() // which waits for questions under way
	state, err := h.machine.State()
	must(t, err)
	if asked := state.Calls["nvmlDeviceGetUtilizationRates"] + state.Calls["nvmlDeviceGetPowerUsage"]; asked > 0 {
		t.Errorf("NVML was asked %d times for the utilization or the power", asked)
	}
}
