package nvml

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// handle is one of several instances.
type handle struct {
	nvml.GpuInstance
	number int
}

// The handle of a MIG device may stand for another once its instance is gone.
func TestAForgottenInstanceTakesItsDevices(t *testing.T) {
	d := newDevice(nil, "GPU", nil)
	for id := range 2 {
		d.instances[handle{number: id}] = gpu.Instance{ID: id}
		d.keepMIG(migHandles{instanceID: id, instance: handle{number: id}, info: gpu.MIGDevice{UUID: string(rune('a' + id))}})
	}
	d.forgetInstance(1)
	if kept, gone := d.knownIn(0), d.knownIn(1); len(kept) != 1 || len(gone) != 0 {
		t.Errorf("got %+v of the instance that stays, %+v of the other", kept, gone)
	}
}
