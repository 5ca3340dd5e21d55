package prepare

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/test/fixture"
)

// losses are what can happen to the file of a claim's record.
var losses = map[string]func(t *testing.T, path string){
	"damaged":   func(t *testing.T, path string) { write(t, path, "damaged") },
	"truncated": func(t *testing.T, path string) { write(t, path, read(t, path)[:len(read(t, path))/2]) },
	"deleted":   remove,
}

// spoil damages the copy of a claim's record.
func spoil(t *testing.T, r *rig, claim *resourceapi.ResourceClaim) {
	t.Helper()
	write(t, r.spec(claim), strings.Replace(read(t, r.spec(claim)), "claimUID", "claimUIX", 1))
}

// lossRig is a node with two claims and a foreign instance. The record of one
// claim is lost.
type lossRig struct {
	*migRig
	claim, other *resourceapi.ResourceClaim
	p            *Preparer
	foreigners   []string
	published    []string
	record       string
	instances    []string
}

func newLossRig(t *testing.T, lose func(t *testing.T, path string), restarted bool) *lossRig {
	t.Helper()
	r := &lossRig{migRig: newMIGRig(t)}
	r.foreign(t, 1, "2g.20gb", 0)
	r.foreigners = r.migRig.instances()
	r.p = r.startMIG(t, nil)
	r.claim, r.other = r.allocated("c", small0, big0, elsewhere, "gpu-2"), r.allocated("other", small1)
	prepare(t, r.p, r.claim)
	prepare(t, r.p, r.other)
	r.published, r.instances = r.publish(t), r.migRig.instances()
	r.record = read(t, r.migRig.record(r.claim))
	lose(t, r.migRig.record(r.claim))
	if restarted {
		r.p = r.startMIG(t, nil)
	}
	return r
}

// publish lists what the node would offer.
func (r *lossRig) publish(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, shape := range gpu.Shapes(r.free(t, r.p).GPUs, gpu.ByDefault) {
		names = append(names, fmt.Sprintf("%T %s", shape, shape.Name()))
	}
	return names
}

func (r *lossRig) expectPublished(t *testing.T) {
	t.Helper()
	if got := r.publish(t); !reflect.DeepEqual(got, r.published) {
		t.Errorf("published are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(r.published, "\n"))
	}
}

// expectRestored finds everything as it was.
func (r *lossRig) expectRestored(t *testing.T) {
	t.Helper()
	if got := read(t, r.migRig.record(r.claim)); got != r.record {
		t.Errorf("the record is\n%swant\n%s", got, r.record)
	}
	if got := r.migRig.instances(); !reflect.DeepEqual(got, r.instances) {
		t.Errorf("got the instances %q, want %q", got, r.instances)
	}
	r.expectMIG(t, r.p, r.foreigners, r.claim, r.other)
	r.expectPublished(t)
}

func (r *lossRig) expectReleased(t *testing.T) {
	t.Helper()
	r.expectMIG(t, r.p, r.foreigners, r.other)
	r.expectPublished(t)
}

// Whatever meets the loss of a record first, its partitions stay the claim's.
func TestPartitionsOutliveTheirRecord(t *testing.T) {
	for name, next := range map[string]func(t *testing.T, r *lossRig){
		"the claim lives": func(t *testing.T, r *lossRig) {
			reconcile(t, r.p)
			r.expectRestored(t)
		},
		"the claim is gone": func(t *testing.T, r *lossRig) {
			r.api.remove(r.claim)
			reconcile(t, r.p)
			r.expectReleased(t)
		},
		"the API server is away": func(t *testing.T, r *lossRig) {
			r.api.fail(errAway)
			if err := r.p.Reconcile(testContext(t)); !errors.Is(err, errAway) {
				t.Errorf("got %v, want %v", err, errAway)
			}
			r.expectRestored(t)
		},
		"it is unprepared": func(t *testing.T, r *lossRig) {
			unprepare(t, r.p, r.claim)
			r.expectReleased(t)
		},
		"it is prepared": func(t *testing.T, r *lossRig) {
			prepare(t, r.p, r.claim)
			r.expectRestored(t)
		},
		"it is prepared after it was allocated anew": func(t *testing.T, r *lossRig) {
			claim := r.allocated("c", "gpu-0-mig-1g10gb-19-2")
			prepare(t, r.p, claim)
			r.expectMIG(t, r.p, r.foreigners, claim, r.other)
			r.expectPublished(t)
		},
		"CDI files are restored": func(t *testing.T, r *lossRig) {
			must(t, r.p.RestoreSpecs(testContext(t)))
			r.expectRestored(t)
		},
		"another claim has its place": func(t *testing.T, r *lossRig) {
			_, err := r.p.Prepare(within(t), r.allocated("next", big0))
			fixture.Sentence(t, err, "claim default/c (UID uid-c) still holds")
			reconcile(t, r.p)
			r.expectRestored(t)
		},
		"another claim has its place, and it is gone": func(t *testing.T, r *lossRig) {
			r.api.remove(r.claim)
			claim := r.allocated("next", big0)
			prepare(t, r.p, claim)
			r.expectMIG(t, r.p, r.foreigners, claim, r.other)
			r.expectPublished(t)
		},
		// MIG stays enabled for the claim whose record is lost.
		"the other claim of the GPU is unprepared": func(t *testing.T, r *lossRig) {
			unprepare(t, r.p, r.other)
			r.expectPublished(t)
			unprepare(t, r.p, r.claim)
			r.expectMIG(t, r.p, r.foreigners)
		},
		"one of its partitions was destroyed": func(t *testing.T, r *lossRig) {
			destroy(t, r.migRig, 1) // the foreign one with it
			reconcile(t, r.p)
			if r.p.CDI.Has(r.claim.UID) {
				t.Error("the CDI file may lead to an administrator's partition")
			}
			unprepare(t, r.p, r.claim)
			if got := r.migRig.instances(); len(got) != 1 {
				t.Errorf("got the instances %q, want that of the other claim", got)
			}
		},
		"there is no driver yet": func(t *testing.T, r *lossRig) {
			node := r.p.node.Swap(nil)
			fixture.Sentence(t, r.p.Unprepare(testContext(t), r.claim.UID), "claim default/c", "the NVIDIA driver on this node does not answer yet")
			r.p.SetNode(*node)
			unprepare(t, r.p, r.claim)
			r.expectReleased(t)
		},
	} {
		for kind, lose := range losses {
			for _, restarted := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, then %s, restarted=%t", kind, name, restarted), func(t *testing.T) {
					r := newLossRig(t, lose, restarted)
					next(t, r)
					r.api.fail(nil)
					reconcile(t, r.p)
				})
			}
		}
	}
}

// Another version's record is not undone without knowing its content: neither
// while both plugins run, during a rolling update, nor after one that was taken back.
func TestTheRecordOfANewerVersion(t *testing.T) {
	for _, device := range sharedDevices {
		t.Run(device, func(t *testing.T) {
			r := newShareRig(t)
			newer := r.startShares(t, nil)
			claim := r.sharing("c", device)
			prepare(t, newer, claim)
			record, copied := read(t, r.record(claim)), read(t, r.spec(claim))
			write(t, r.record(claim), strings.Replace(record, `"schemaVersion":1`, `"schemaVersion":4`, 1))
			write(t, r.spec(claim), strings.Replace(copied, `\"schemaVersion\":1`, `\"schemaVersion\":4`, 1))

			older := r.startShares(t, nil)
			refused(t, older, claim, "claim default/c", "was written by a newer version of the plugin", "install that version again")
			fixture.Sentence(t, older.Unprepare(testContext(t), claim.UID), "claim uid-c", "was written by a newer version of the plugin")
			fixture.Sentence(t, older.Reconcile(testContext(t)), "was written by a newer version of the plugin")
			r.api.remove(claim)
			fixture.Sentence(t, older.Reconcile(testContext(t)), "was written by a newer version of the plugin")
			prepare(t, older, r.sharing("other", elsewhere))
			unprepare(t, older, r.sharing("other", elsewhere))

			if got := read(t, r.spec(claim)); !strings.Contains(got, `\"schemaVersion\":4`) {
				t.Errorf("the CDI file was changed to %s", got)
			}
			write(t, r.record(claim), strings.Replace(read(t, r.record(claim)), `"schemaVersion":4`, `"schemaVersion":1`, 1))
			write(t, r.spec(claim), copied)
			r.expectShares(t, newer, claim)
			unprepare(t, newer, claim)
			r.expectShares(t, newer)
		})
	}
}

// A copy that is damaged as well is no copy, and does no harm. The claim keeps its partition, which
// passes for an administrator's and outlives it.
func TestARecordAndItsCopyAreLost(t *testing.T) {
	r := newLossRig(t, losses["damaged"], false)
	spoil(t, r.rig, r.claim)
	reconcile(t, r.p)
	r.expect(t, r.claim, r.other)
	r.api.remove(r.claim)
	reconcile(t, r.p)
	r.expect(t, r.other)
	if got := r.migRig.instances(); !reflect.DeepEqual(got, r.instances) {
		t.Errorf("got the instances %q, want %q", got, r.instances)
	}
}

// The copy of another boot, which a CDI directory on disk keeps, names nothing.
func TestACopyFromBeforeAReboot(t *testing.T) {
	r := newLossRig(t, losses["deleted"], false)
	must(t, r.machine.Reboot())
	r.boot = "boot-2"
	r.foreign(t, 0, "1g.10gb", 0) // where the claim had one
	before := r.migRig.instances()
	p := r.startMIG(t, nil)
	unprepare(t, p, r.claim)
	unprepare(t, p, r.other)
	r.expectMIG(t, p, before)
}

// A claim that was allocated anew and cannot be prepared leaves nothing of what it
// had, not even a copy that would bring its record back.
func TestNothingIsLeftOfAnEarlierAllocation(t *testing.T) {
	r, p := runMIG(t)
	prepare(t, p, r.allocated("c", big0))
	r.foreign(t, 1, "1g.10gb", 4)
	refused(t, p, r.allocated("c", elsewhere), "claim default/c", "Mica did not make")
	r.expectMIG(t, p, r.instances())
}
