package abi_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// The plugin reads the health of a fabric by a function that go-nvml reaches only in the real library.
func TestThePluginReadsTheHealthOfAFabric(t *testing.T) {
	d := start(t, "p5.48xlarge").use()
	library, err := nvml.Open(d.root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = library.Close() }()
	node, _, err := library.Discover()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		fabric model.Fabric
		health model.FabricHealth
		want   health.FabricHealth
	}{
		"healthy":   {model.FabricCompleted, "", health.FabricHealth{Summary: health.FabricHealthy}},
		"unhealthy": {model.FabricCompleted, model.FabricUnhealthy, health.FabricHealth{Summary: health.FabricUnhealthy, Reasons: "unhealthy route, insufficient NVLinks"}},
		"limited":   {model.FabricCompleted, model.FabricLimitedCapacity, health.FabricHealth{Summary: health.FabricLimited, Reasons: "degraded bandwidth"}},
		"unsaid":    {model.FabricCompleted, model.FabricHealthUnknown, health.FabricHealth{}},
		"refused": {model.FabricCompleted, model.FabricNotJoined, health.FabricHealth{
			Summary: health.FabricUnhealthy, Reasons: "the GPU has not joined it: " + gonvml.ERROR_INSUFFICIENT_RESOURCES.Error(),
		}},
		"not ready": {model.FabricInProgress, model.FabricUnhealthy, health.FabricHealth{}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := d.control().SetFabric(c.fabric); err != nil {
				t.Fatal(err)
			}
			if err := d.control().SetCondition(0, model.Condition{Fabric: c.health}); err != nil {
				t.Fatal(err)
			}
			level, err := library.Health(node.GPUs[0].UUID)
			if err != nil || level.Fabric != c.want {
				t.Errorf("got %+v, %v, want %+v", level.Fabric, err, c.want)
			}
		})
	}
}

// Drivers before R580 report no health, but which GPU the fabric manager has refused.
func TestThePluginReadsWhichGPUAFabricRefused(t *testing.T) {
	node, err := os.ReadFile("../nodes/p5.48xlarge.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, bytes.ReplaceAll(node, []byte("580.95.05"), []byte("570.172.08")), 0o644); err != nil {
		t.Fatal(err)
	}
	d := start(t, file).use()
	library, err := nvml.Open(d.root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = library.Close() }()
	for gpu, fabric := range []model.FabricHealth{model.FabricNotJoined, model.FabricUnhealthy} {
		if err := d.control().SetCondition(gpu, model.Condition{Fabric: fabric}); err != nil {
			t.Fatal(err)
		}
	}
	discovered, _, err := library.Discover()
	if err != nil {
		t.Fatal(err)
	}
	for gpu, want := range []health.FabricSummary{health.FabricUnhealthy, health.FabricUnknown} {
		level, err := library.Health(discovered.GPUs[gpu].UUID)
		if err != nil || level.Fabric.Summary != want {
			t.Errorf("GPU %d: got %+v, %v, want the summary %d", gpu, level.Fabric, err, want)
		}
	}
}
