package monitor

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// branches are drivers: two without a recovery action, and two with.
var branches = map[int]string{535: "535.183.01", 550: "550.163.01", 570: "570.172.08", 580: "580.95.05"}

// On every branch of the driver, an XID after which the GPU needs something taints it as what it is, so that a policy for
// XIDs applies, whether the driver's recovery action speaks for it, and comes after it, or the table does.
func TestXIDsOnEveryBranch(t *testing.T) {
	const never = 10000
	for _, story := range []struct {
		xid uint64
		// linked is the first branch whose recovery action speaks for the XID.
		linked   int
		severity health.Severity
	}{
		{46, never, health.Drain}, {48, 565, health.Drain}, {62, 565, health.Drain}, {64, 565, health.Drain}, {74, 565, health.Drain},
		{79, 565, health.Dead}, {95, 565, health.Drain}, {109, 570, health.Drain}, {110, 565, health.Drain}, {119, never, health.Drain},
		{120, 565, health.Drain}, {136, 565, health.Drain}, {140, never, health.Drain}, {143, 575, health.Drain}, {145, 565, health.Drain},
		{151, never, health.Dead}, {155, 565, health.Drain}, {158, 565, health.Drain},
	} {
		for branch, version := range branches {
			t.Run(fmt.Sprintf("XID %d on R%d", story.xid, branch), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { tellXID(t, version, story.xid, story.severity, branch >= story.linked) })
			})
		}
	}
}

func tellXID(t *testing.T, driver string, xid uint64, severity health.Severity, linked bool) {
	file := fixture.File(t, "p5.48xlarge")
	file.DriverVersion = driver
	w := newWardOf(t, file)
	w.start()
	w.expect(0)
	w.must(w.machine.Inject(model.XID(0, xid)))
	w.expect(0, fmt.Sprintf("xid=%d %s", xid, severity))
	w.expect(1)

	record := w.monitor.Record(w.gpus[0].UUID)
	if len(record.Faults) != 1 {
		return
	}
	fault := record.Faults[0]
	if fault.Unconfirmed == linked {
		t.Errorf("the fault is unconfirmed %t, and the driver's action speaks for it %t", fault.Unconfirmed, linked)
	}
	taint := slice.FaultEffects{health.XID: resourceapi.DeviceTaintEffectNoExecute}.Sick(fault)
	if taint.Key != "gpu.nvidia.com/xid" || taint.Value != fmt.Sprint(xid) || taint.Effect != resourceapi.DeviceTaintEffectNoExecute {
		t.Errorf("got the taint %v", taint)
	}
	if due := record.ResetDue(health.ConditionSet{health.XID: true}, time.Now()); due != (severity == health.Drain) {
		t.Errorf("by a policy that resets, a reset is due %t", due)
	}

	time.Sleep(20 * time.Minute)
	w.expect(0, fmt.Sprintf("xid=%d %s", xid, severity))
	if severity == health.Dead {
		return
	}
	w.must(w.machine.Reset(0))
	if !linked {
		time.Sleep(20 * time.Minute)
		w.expect(0, fmt.Sprintf("xid=%d %s", xid, severity))
		w.monitor.Restored(w.gpus[0].UUID)
	}
	w.expect(0, fmt.Sprintf("xid=%d %s", xid, severity))
	time.Sleep(quiet + 2*time.Minute)
	w.expect(0)
}
