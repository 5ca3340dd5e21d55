package prepare

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mica-gpu/mica/test/fixture"
)

func TestAClaimWaitsForARelease(t *testing.T) {
	r := newRig(t)
	old, fresh := r.claim("old", 0, 1), r.claim("fresh", 1)
	holder := r.start(t)
	prepare(t, holder, old)
	locks := &announcing{Locks: holder.Locks, locked: make(chan struct{})}
	waiter := r.start(t, func(o *Options) { o.ReleaseWait, o.Locks = time.Minute, locks })
	failure := make(chan error, 1)
	go func() {
		_, err := waiter.Prepare(testContext(t), fresh)
		failure <- err
	}()
	<-locks.locked // it has the GPU's lock, and finds the record
	select {
	case err := <-failure:
		t.Fatalf("prepared, with error %v, what another claim holds", err)
	default:
	}
	unprepare(t, holder, old)
	must(t, <-failure)
	r.expect(t, fresh)
}

// announcing reports when a GPU is locked.
type announcing struct {
	Locks
	once   sync.Once
	locked chan struct{}
}

func (a *announcing) Lock(ctx context.Context, keys ...string) (func(), error) {
	unlock, err := a.Locks.Lock(ctx, keys...)
	if strings.HasPrefix(keys[0], "gpu-") {
		a.once.Do(func() { close(a.locked) })
	}
	return unlock, err
}

// TestReconcile has the other ways in which a claim can be gone.
func TestAClaimTakesOver(t *testing.T) {
	r, p := run(t)
	for name, minors := range map[string][]int{"old": {0, 1}, "older": {2}} {
		prepare(t, p, r.claim(name, minors...))
		r.api.remove(fixture.Claim(name))
	}
	fresh := r.claim("fresh", 1, 2)
	prepare(t, p, fresh)
	r.expect(t, fresh)
}

func unallocate(r *rig, name string) {
	claim := fixture.Claim(name)
	claim.Status.Allocation = nil
	r.api.put(claim)
}

func TestALiveClaimKeepsItsGPU(t *testing.T) {
	r, p := run(t)
	old := r.claim("old", 0)
	prepare(t, p, old)
	refused(t, p, r.claim("fresh", 0, 1), "claim default/fresh (UID uid-fresh): it was given a GPU", "claim default/old (UID uid-old) still holds on this node", "delete one of the two pods")
	r.expect(t, old)
}

// Only the API server's word takes a GPU away.
func TestAClaimKeepsItsGPUWhileTheAPIServerIsAway(t *testing.T) {
	r, p := run(t)
	old := r.claim("old", 0)
	prepare(t, p, old)
	r.api.remove(old)
	r.api.fail(errAway)
	fresh := r.claim("fresh", 0)
	refused(t, p, fresh, "claim default/fresh", "claim default/old (UID uid-old) held", "it is not known whether that claim still exists", "connection refused")
	r.expect(t, old)
	r.api.fail(nil)
	prepare(t, p, fresh)
	r.expect(t, fresh)
}

func TestAdminAccessNeverConflicts(t *testing.T) {
	r, p := run(t)
	admin := fixture.Claim("admin", fixture.AdminResult("look", "gpu-0"), fixture.AdminResult("look", "gpu-1"))
	other := fixture.Claim("other", fixture.AdminResult("look", "gpu-0"))
	r.api.put(admin)
	r.api.put(other)
	holder := r.claim("holder", 0)
	prepare(t, p, admin)
	prepare(t, p, holder)
	prepare(t, p, other)
	r.expect(t, admin, holder, other)
	unprepare(t, p, admin)
	unprepare(t, p, other)
	r.expect(t, holder)
}

// After a reboot nothing holds a GPU any more, whatever the records say.
func TestRecordsOfAnEarlierBootHoldNothing(t *testing.T) {
	r := newRig(t)
	old := r.claim("old", 0)
	prepare(t, r.start(t), old)
	r.boot = "boot-2"
	p := r.start(t)
	fresh := r.claim("fresh", 0)
	prepare(t, p, fresh)
	reconcile(t, p)
	r.expect(t, fresh)
}

// A GPU is idle when no claim has something of it; while it is kept so, claims wait.
func TestAnIdleGPU(t *testing.T) {
	r := newRig(t)
	claim := r.claim("c", 1)
	p := r.start(t)
	release, idle, err := p.Idle(testContext(t), uuid(1))
	if err != nil || !idle {
		t.Fatalf("GPU 1 is idle: %v, %v", idle, err)
	}
	brief, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = r.start(t).Prepare(brief, claim)
	fixture.Sentence(t, err, "c", "lock", uuid(1), context.DeadlineExceeded.Error())
	release()
	prepare(t, p, claim)
	for minor := range 2 {
		release, idle, err := p.Idle(testContext(t), uuid(minor))
		if err != nil || idle != (minor == 0) {
			t.Errorf("GPU %d is idle: %v, %v", minor, idle, err)
		}
		if idle {
			release()
		}
	}
}
