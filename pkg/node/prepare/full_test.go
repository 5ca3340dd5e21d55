package prepare

import (
	"testing"

	"github.com/mica-gpu/mica/test/fixture"
)

// A pod can end on a node whose disk is full, and gives its partition back. The Event of a
// new pod says why it waits.
func TestAFullDisk(t *testing.T) {
	r := newMIGRigOf(t, 1)
	fixture.SmallDisk(t, r.dir)
	p, before := r.startMIG(t, nil), r.instances()
	going, coming := r.allocated("going", small0), r.allocated("coming", small1)
	prepare(t, p, going)
	space := fixture.FillDisk(t, r.dir)
	if err := p.Unprepare(within(t), going.UID); err != nil {
		t.Error(err)
	}
	r.expectMIG(t, p, before)
	fixture.FillDisk(t, r.dir) // with what the record and the CDI file have left
	refused(t, p, coming, "claim default/coming", "no space left on device")
	r.expectMIG(t, p, before)
	space()
	prepare(t, p, coming)
	unprepare(t, p, coming)
	r.expectMIG(t, p, before)
}
