package account

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/component-base/metrics"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/test/fixture"
)

// utilization is that of devices by name.
type utilization map[string]float64

func (u utilization) of(device string) (float64, bool) {
	ratio, known := u[device]
	return ratio, known
}

func newAccount(t *testing.T, o Options) (*Account, metrics.KubeRegistry) {
	t.Helper()
	if o.Utilization == nil {
		o.Utilization = utilization{}.of
	}
	a, registry := New(o), metrics.NewKubeRegistry()
	registry.CustomMustRegister(a)
	return a, registry
}

// shown are the series of a metric as `labels value`, sorted.
func shown(t *testing.T, registry metrics.KubeRegistry, name string) []string {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			var labels []string
			for _, label := range m.GetLabel() {
				labels = append(labels, label.GetName()+"="+label.GetValue())
			}
			lines = append(lines, fmt.Sprintf("%s %.6g", strings.Join(labels, " "), m.GetGauge().GetValue()+m.GetCounter().GetValue()))
		}
	}
	slices.Sort(lines)
	return lines
}

func expect(t *testing.T, registry metrics.KubeRegistry, name string, want ...string) {
	t.Helper()
	if got := shown(t, registry, name); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

const (
	info    = "mica_claim_device_info"
	seconds = "mica_namespace_gpu_seconds_total"
)

func TestDevicesOfClaimsAreReported(t *testing.T) {
	a, registry := newAccount(t, Options{})
	share := Hold{Namespace: "ml", Claim: "two-shares", Pods: []string{"c"}, Device: "gpu-2-mps", UUID: "GPU-2"}
	a.Set([]Hold{
		{Namespace: "ml", Claim: "whole", Pods: []string{"a", "b"}, Device: "gpu-0", UUID: "GPU-0"},
		{Namespace: "web", Claim: "part", Pods: nil, Device: "gpu-1-mig-1g10gb-19-0", UUID: "GPU-1", Placement: gpu.Placement{Size: 1, InstanceID: 7}},
		share, share,
	})
	expect(t, registry, info,
		"GPU_I_ID= UUID=GPU-0 claim=whole device=gpu-0 namespace=ml pod=a 1",
		"GPU_I_ID= UUID=GPU-0 claim=whole device=gpu-0 namespace=ml pod=b 1",
		"GPU_I_ID= UUID=GPU-2 claim=two-shares device=gpu-2-mps namespace=ml pod=c 1",
		"GPU_I_ID=7 UUID=GPU-1 claim=part device=gpu-1-mig-1g10gb-19-0 namespace=web pod= 1",
	)
	a.Set([]Hold{share})
	expect(t, registry, info, "GPU_I_ID= UUID=GPU-2 claim=two-shares device=gpu-2-mps namespace=ml pod=c 1")
	a.Set(nil)
	expect(t, registry, info)
}

func TestClaimsAndPodsAreNotNamed(t *testing.T) {
	a, registry := newAccount(t, Options{Unnamed: true})
	a.Set([]Hold{{Namespace: "ml", Claim: "whole", Pods: []string{"a"}, Device: "gpu-0", UUID: "GPU-0", GPUs: 1}})
	expect(t, registry, info)
	if got := shown(t, registry, seconds); len(got) != len(states) {
		t.Errorf("got %q; GPU-seconds are counted all the same", got)
	}
}

func TestGPUSecondsAreAddedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := utilization{"gpu-0": 0.25, "gpu-1-mps": 1}
		a, registry := newAccount(t, Options{Utilization: busy.of})
		expect(t, registry, seconds)
		a.Set([]Hold{
			{Namespace: "ml", Device: "gpu-0", GPUs: 1},
			{Namespace: "ml", Device: "gpu-1-mps", GPUs: 0.5},
			{Namespace: "web", Device: "gpu-2-mig-1g5gb-19-0", GPUs: 0.125},
			{Namespace: "web", Device: "gone"},
		})
		time.Sleep(10 * time.Second)
		a.Settle()
		busy["gpu-0"] = 1
		time.Sleep(10 * time.Second)
		want := []string{
			"namespace=ml state=busy 22.5", "namespace=ml state=idle 7.5", "namespace=ml state=unknown 0",
			"namespace=web state=busy 0", "namespace=web state=idle 0", "namespace=web state=unknown 2.5",
		}
		expect(t, registry, seconds, want...)
		a.Set(nil)
		time.Sleep(time.Hour)
		expect(t, registry, seconds, want...)
	})
}

// A scrape comes at any time.
func TestScrapesDoNotRaceWithClaims(t *testing.T) {
	a, registry := newAccount(t, Options{})
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			for range 200 {
				a.Set([]Hold{{Namespace: fmt.Sprint(i), Claim: "c", Device: "gpu-0", UUID: "GPU-0", GPUs: 1}})
				if _, err := registry.Gather(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}

func TestWhatIsHeldIsChargedByItsPart(t *testing.T) {
	node := fixture.Node(t, "p5.48xlarge")
	shapes, byForm := map[string]gpu.Shape{}, map[string]gpu.Shape{}
	slicing := gpu.TimeSlicing{Replicas: 4, Interval: gpu.DefaultInterval}
	policy := gpu.Policy{Whole: true, MIG: true, TimeSlicing: &slicing, MPS: &gpu.MPS{Clients: 4}, SharedProfiles: map[string]gpu.Sharing{"3g.40gb": slicing}}
	for _, shape := range gpu.Shapes(node.GPUs[:1], func(gpu.GPU) gpu.Policy { return policy }) {
		shapes[shape.Name()] = shape
		byForm[shape.Type()+" "+shape.Form().Profile] = shape
	}
	// device is a record of a part of a shape.
	device := func(of string, part float64) journal.Device {
		shape := byForm[of]
		return journal.Device{Device: shape.Name(), UUID: node.GPUs[0].UUID, Type: shape.Type(), Form: shape.Form(), Part: part}
	}
	unoffered, replaced := device("gpu ", 1), device("gpu ", 1)
	unoffered.Device, replaced.UUID = "gpu-9", "GPU-before"
	claim := fixture.Claim("one", fixture.Result("a", "gpu-0"))
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{
		{Resource: "pods", Name: "pod-of-one"}, {APIGroup: "other.example", Resource: "pods", Name: "no-pod"},
	}
	for name, test := range map[string]struct {
		device  journal.Device
		gpus    float64
		profile string
	}{
		"a whole GPU":                  {device("gpu ", 1), 1, ""},
		"a partition":                  {device("mig 1g.10gb", 1), 1.0 / 8, "1g.10gb"},
		"half of the memory":           {device("mig 3g.40gb", 1), 0.5, "3g.40gb"},
		"three shares":                 {device("timeslice ", 0.75), 0.75, ""},
		"a share of a partition":       {device("mig-timeslice 3g.40gb", 0.25), 0.125, "3g.40gb"},
		"cores":                        {device("mps ", 0.4), 0.4, ""},
		"a device that is not offered": {unoffered, 0, ""},
		"a GPU that was replaced":      {replaced, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			claims := map[string]Claim{"uid": ClaimOf(claim)}
			record := journal.Record{ClaimUID: "uid", Namespace: "ml", Name: "c", Devices: []journal.Device{test.device, {Device: "gpu-1", AdminAccess: true}}}
			holds := Holds([]journal.Record{record}, claims, shapes)
			if len(holds) != 1 {
				t.Fatalf("got %+v", holds)
			}
			if got := holds[0]; math.Abs(got.GPUs-test.gpus) > 1e-9 || got.Profile != test.profile || got.Namespace != "ml" || got.Claim != "c" {
				t.Errorf("got %+v, want %v GPUs", got, test.gpus)
			}
			if pods := holds[0].Pods; !slices.Equal(pods, []string{"pod-of-one"}) {
				t.Errorf("got pods %q", pods)
			}
		})
	}
}

// Claims without a part of their own divide what the others leave.
func TestClaimsOfAGPUWithoutLimitHaveEqualParts(t *testing.T) {
	device := func(part float64) journal.Device {
		return journal.Device{Device: "gpu-0", UUID: "GPU-0", Form: gpu.Form{Base: "whole", Sharing: gpu.ByNothing}, Part: part}
	}
	looks := device(0)
	looks.AdminAccess = true
	shapes := map[string]gpu.Shape{"gpu-0": gpu.Consumable{Whole: gpu.Whole{GPU: gpu.GPU{UUID: "GPU-0"}}, Shares: gpu.ConsumableShares{By: gpu.ByNothing}}}
	for _, tc := range []struct {
		devices []journal.Device
		want    []float64
	}{
		{[]journal.Device{device(0), looks}, []float64{1}},
		{[]journal.Device{device(0), device(0), device(0), device(0)}, []float64{0.25, 0.25, 0.25, 0.25}},
		{[]journal.Device{device(0.5), device(0), device(0)}, []float64{0.5, 0.25, 0.25}},
		{[]journal.Device{device(1), device(0)}, []float64{1, 0}},
	} {
		var records []journal.Record
		for _, d := range tc.devices {
			records = append(records, journal.Record{Devices: []journal.Device{d}})
		}
		var got []float64
		for _, hold := range Holds(records, nil, shapes) {
			got = append(got, hold.GPUs)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("got %v, want %v", got, tc.want)
		}
	}
}
