package abi_test

import (
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
