package conformance_test

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/conformance"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/nodes"
)

func TestModel(t *testing.T) {
	for _, name := range nodes.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node, err := nodes.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			machine, err := model.Load(node)
			if err != nil {
				t.Fatal(err)
			}
			conformance.Run(t, func() nvml.Interface { return machine.NewSession() }, node, machine)
			state, err := machine.State()
			if err != nil {
				t.Fatal(err)
			}
			if state.Sessions != 0 {
				t.Errorf("%d sessions are open after the suite", state.Sessions)
			}
		})
	}
}
