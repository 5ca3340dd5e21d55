package driverroot

import (
	"path"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// gpus shows the GPUs that the driver has and, from then on, each one that comes or goes.
func (t *Tree) gpus(machine *model.Machine) {
	gpus := machine.GPUs()
	for _, gpu := range gpus {
		if gpu.Attached {
			t.attach(gpu)
		}
	}
	machine.WatchAttachments(func(index int, attached bool) {
		t.follow(func() {
			if attached {
				t.attach(gpus[index])
			} else {
				t.detach(gpus[index])
			}
		})
	})
}

func (t *Tree) attach(gpu model.GPUInfo) {
	t.attached[gpu.Index] = true
	t.device(model.GPUNode(gpu.Minor))
	t.information(gpu)
	t.place(gpu)
}

// detach removes what attach made.
func (t *Tree) detach(gpu model.GPUInfo) {
	t.attached[gpu.Index] = false
	t.removeDevice(model.GPUNode(gpu.Minor))
	t.remove(path.Dir(informationFile(gpu)))
	t.remove(path.Dir(instancesDir(gpu.Minor)))
	t.removePlace(gpu)
}
