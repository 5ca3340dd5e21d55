package model_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/nodes"
)

// A GPU asks for a recovery action after its XID and not with it, if the driver's release links the two, and not after a reset.
func TestTheRecoveryActionComesAfterItsXID(t *testing.T) {
	for name, c := range map[string]struct {
		driver string
		xid    uint64
		before func(*model.Machine) error
		want   model.RecoveryAction
	}{
		"linked":                 {"580.95.05", 95, nil, "gpu-reset"},
		"reboot":                 {"570.172.08", 79, nil, "node-reboot"},
		"linked from R570 on":    {"570.172.08", 109, nil, "gpu-reset"},
		"not yet linked":         {"565.57.01", 109, nil, ""},
		"linked from R575 on":    {"575.57.08", 143, nil, "gpu-reset"},
		"never linked":           {"580.95.05", 119, nil, ""},
		"of an application":      {"580.95.05", 13, nil, ""},
		"without recovery":       {"550.163.01", 95, nil, ""},
		"reset before it comes":  {"580.95.05", 95, func(m *model.Machine) error { return m.Reset(0) }, ""},
		"healed before it comes": {"580.95.05", 95, func(m *model.Machine) error { return m.SetCondition(0, model.Condition{}) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				file, err := nodes.Load("p5.48xlarge")
				must(t, err)
				file.DriverVersion = c.driver
				machine, err := model.Load(file)
				must(t, err)
				expect := func(want model.RecoveryAction) {
					t.Helper()
					synctest.Wait()
					state, err := machine.State()
					must(t, err)
					if got := state.GPUs[0].Condition.RecoveryAction; got != want {
						t.Errorf("got the action %q, want %q", got, want)
					}
				}
				must(t, machine.Inject(model.XID(0, c.xid)))
				time.Sleep(time.Second)
				expect("")
				if c.before != nil {
					must(t, c.before(machine))
				}
				time.Sleep(10 * time.Second)
				expect(c.want)
			})
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
