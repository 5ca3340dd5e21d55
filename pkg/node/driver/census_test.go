package driver

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/node/account"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/offer"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

func registryOf(collectors ...metrics.StableCollector) metrics.KubeRegistry {
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(collectors...)
	return registry
}

// gauges are all series, as `name label=value label=value: number`, sorted.
func gauges(t *testing.T, registry metrics.KubeRegistry) []string {
	t.Helper()
	families, err := registry.Gather()
	must(t, err)
	var lines []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			line := strings.TrimPrefix(family.GetName(), "mica_")
			for _, label := range m.GetLabel() {
				line += fmt.Sprintf(" %s=%s", label.GetName(), label.GetValue())
			}
			lines = append(lines, fmt.Sprintf("%s: %v", line, m.GetGauge().GetValue()))
		}
	}
	slices.Sort(lines)
	return lines
}

func TestGPUsAndDevicesAreCountedByTheirState(t *testing.T) {
	node := fixture.Node(t, "p5.48xlarge")
	node.GPUs = node.GPUs[:4]
	policy := gpu.Policy{Whole: true, MIG: true, Profiles: []string{"3g.40gb"}, TimeSlicing: &gpu.TimeSlicing{Replicas: 4}}
	shapes := gpu.Shapes(node.GPUs, func(gpu.GPU) gpu.Policy { return policy })
	lost := node.GPUs[3]
	node.GPUs = node.GPUs[:3]
	taints := slice.Taints{}
	taints.AddGPU(lost.UUID, shapes, slice.FaultEffects{}.Sick(health.Fault{Condition: health.Lost, Severity: health.Dead}))
	for _, shape := range shapes {
		if shape.Physical().UUID == node.GPUs[2].UUID {
			taints.Add(shape.Name(), slice.FaultEffects{}.Sick(health.Fault{Condition: health.Memory, Severity: health.Degraded}))
		}
	}
	records := map[string]health.Record{
		node.GPUs[0].UUID: {Reach: health.Answers, Action: health.ActionNone},
		node.GPUs[2].UUID: {Reach: health.Answers, Action: health.ActionNone, Faults: []health.Fault{{Condition: health.Memory, Severity: health.Degraded}}},
		lost.UUID:         {Reach: health.Gone, Faults: []health.Fault{{Condition: health.Lost, Severity: health.Dead}, {Condition: health.Memory, Severity: health.Degraded}}},
	}
	half := shapes[slices.IndexFunc(shapes, func(s gpu.Shape) bool { return s.Form().Start == 4 && s.Physical().UUID == node.GPUs[0].UUID })]
	holds := []account.Hold{
		{Type: "mig", Profile: "3g.40gb", Device: half.Name(), UUID: node.GPUs[0].UUID, Placement: half.Form().Placement, Part: 1},
		{Type: "timeslice", Device: "gpu-1-timeslice", UUID: node.GPUs[1].UUID, Part: 0.25},
		{Type: "timeslice", Device: "gpu-1-timeslice", UUID: node.GPUs[1].UUID, Part: 0.5},
	}
	c := &census{
		state:  func() offer.State { return offer.State{Node: node, Shapes: shapes, Taints: taints} },
		health: func(uuid string) health.Record { return records[uuid] },
		holds:  func() []account.Hold { return holds },
		tallies: func() map[journal.State]journal.Tally {
			return map[journal.State]journal.Tally{
				journal.Prepared: {Records: 2, Bytes: 1000, Oldest: time.UnixMilli(1700000000500)},
				journal.Damaged:  {Records: 1, Bytes: 24, Oldest: time.Unix(1700000001, 0)},
			}
		},
	}
	want := []string{
		"device_taints effect=NoSchedule key=gpu.nvidia.com/gpu-lost: 4",
		"device_taints effect=None key=mica.gpu/memory: 4",
		"devices health=dead profile= type=gpu: 1",
		"devices health=dead profile= type=timeslice: 1",
		"devices health=dead profile=3g.40gb type=mig: 2",
		"devices health=degraded profile= type=gpu: 1",
		"devices health=degraded profile= type=timeslice: 1",
		"devices health=degraded profile=3g.40gb type=mig: 2",
		"devices health=ok profile= type=gpu: 1",
		"devices health=ok profile= type=timeslice: 1",
		"devices health=ok profile=3g.40gb type=mig: 2",
		"devices health=unknown profile= type=gpu: 1",
		"devices health=unknown profile= type=timeslice: 1",
		"devices health=unknown profile=3g.40gb type=mig: 2",
		"free_devices profile= type=gpu: 1",
		"free_devices profile= type=timeslice: 2",  // of GPU 1 a share is left
		"free_devices profile=3g.40gb type=mig: 3", // the other half of GPU 0, and GPU 2
		"gpus health=dead product=NVIDIA H100 80GB HBM3 recovery_action=unknown: 1",
		"gpus health=degraded product=NVIDIA H100 80GB HBM3 recovery_action=none: 1",
		"gpus health=ok product=NVIDIA H100 80GB HBM3 recovery_action=none: 1",
		"gpus health=unknown product=NVIDIA H100 80GB HBM3 recovery_action=unknown: 1",
		"journal_oldest_record_timestamp_seconds state=damaged: 1.700000001e+09",
		"journal_oldest_record_timestamp_seconds state=prepared: 1.7000000005e+09",
		"journal_records state=damaged: 1",
		"journal_records state=intent: 0",
		"journal_records state=prepared: 2",
		"journal_size_bytes: 1024",
		"prepared_devices profile= type=timeslice: 2",
		"prepared_devices profile=3g.40gb type=mig: 1",
	}
	registry := registryOf(c)
	if got := gauges(t, registry); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	holds[2].Part = 0.75
	if got := gauges(t, registry); !slices.Contains(got, "free_devices profile= type=timeslice: 1") {
		t.Errorf("got %q; no share is left of GPU 1", got)
	}
}

// infos are the labels of the info metric, as `pod device UUID instance`, sorted.
func infos(t *testing.T, registry metrics.KubeRegistry) []string {
	t.Helper()
	var lines []string
	for _, line := range gauges(t, registry) {
		if rest, is := strings.CutPrefix(line, "claim_device_info "); is {
			lines = append(lines, rest)
		}
	}
	return lines
}

// A GPU for several claims is free as long as a claim that requests no amount could get it.
func TestFreeGPUsForSeveralClaims(t *testing.T) {
	whole := gpu.Whole{GPU: gpu.GPU{UUID: "GPU-0"}}
	for _, tc := range []struct {
		shares gpu.ConsumableShares
		parts  []float64
		want   bool
	}{
		{gpu.ConsumableShares{By: gpu.ByNothing}, []float64{0.5, 0.5}, true},
		{gpu.ConsumableShares{By: gpu.ByMemory}, nil, true},
		{gpu.ConsumableShares{By: gpu.ByMemory}, []float64{0.05}, false},
		{gpu.ConsumableShares{By: gpu.ByCount, Count: 4}, []float64{0.5, 0.25}, true},
		{gpu.ConsumableShares{By: gpu.ByCount, Count: 4}, []float64{0.5, 0.5}, false},
	} {
		var holds []account.Hold
		for _, part := range tc.parts {
			holds = append(holds, account.Hold{Device: "gpu-0", UUID: "GPU-0", Part: part})
		}
		shape := gpu.Consumable{Whole: whole, Shares: tc.shares}
		if got := free("gpu-0", shape, nil, holds); got != tc.want {
			t.Errorf("%+v with %v held: free is %t", tc.shares, tc.parts, got)
		}
		if timeSlice := (gpu.Share{Of: whole, Sharing: gpu.TimeSlicing{Replicas: 4}}); len(holds) > 0 && free("gpu-0-timeslice", timeSlice, nil, holds) {
			t.Errorf("%+v: a share of a held GPU is free", tc.shares)
		}
	}
}
