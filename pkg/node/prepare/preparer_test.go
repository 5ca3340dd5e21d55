package prepare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/test/fixture"
)

func TestPrepareReturnsDevicesInOrder(t *testing.T) {
	r, p := run(t)
	claim := r.claim("c", 5, 2)
	claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
		fixture.AdminResult("look", "gpu-2"),
		resourceapi.DeviceRequestAllocationResult{Request: "nic", Driver: "nic.example.com", Pool: fixture.NodeName, Device: "gpu-7"})
	devices := prepare(t, p, claim)
	var got []string
	for _, d := range devices {
		got = append(got, fmt.Sprintf("%s %s/%s %s admin=%t %s", d.Request, d.Pool, d.Device, d.UUID, d.AdminAccess, d.CDIDeviceIDs))
	}
	want := []string{
		"gpus node-a/gpu-5 GPU-5 admin=false [gpu.nvidia.com/claim=uid-c-gpu-5]",
		"gpus node-a/gpu-2 GPU-2 admin=false [gpu.nvidia.com/claim=uid-c-gpu-2]",
		"look node-a/gpu-2 GPU-2 admin=true [gpu.nvidia.com/claim=uid-c-gpu-2]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
	r.expect(t, claim)
}

func TestPrepareAgainReturnsTheSame(t *testing.T) {
	r := newRig(t)
	claim := r.claim("c", 3)
	first := prepare(t, r.start(t), claim)
	info, err := os.Stat(r.record(claim))
	must(t, err)
	p := r.start(t) // another process
	// What is prepared needs neither the driver nor its edits.
	p.node.Store(nil)
	again := prepare(t, p, claim)
	if !reflect.DeepEqual(first, again) {
		t.Errorf("got %v, then %v", first, again)
	}
	after, err := os.Stat(r.record(claim))
	must(t, err)
	if !os.SameFile(info, after) {
		t.Error("the record was written again")
	}
	remove(t, r.spec(claim)) // without it, containers do not start
	refused(t, p, claim, "claim default/c", "the NVIDIA driver on this node does not answer yet")
}

// A claim that is released and allocated again keeps its UID.
func TestPrepareFollowsANewAllocation(t *testing.T) {
	for name, minors := range map[string][]int{
		"another GPU": {4}, "one more": {0, 4}, "in another order": {1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r, p := run(t)
			old := []int{0}
			if len(minors) == 2 && minors[1] == 0 {
				old = []int{0, 1}
			}
			prepare(t, p, r.claim("c", old...))
			claim := r.claim("c", minors...)
			devices := prepare(t, p, claim)
			var got []string
			for _, d := range devices {
				got = append(got, d.UUID)
			}
			var want []string
			for _, minor := range minors {
				want = append(want, uuid(minor))
			}
			if !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
			r.expect(t, claim)
		})
	}
}

func TestPrepareBeforeTheDriverAnswers(t *testing.T) {
	r, p := run(t)
	p.node.Store(nil)
	refused(t, p, r.claim("c", 0), "claim default/c", "the NVIDIA driver on this node does not answer yet", "kubelet tries again")
	r.expect(t)
}

// kubelet knows a plugin before it has looked at its GPUs.
func TestAClaimWaitsForTheFirstLook(t *testing.T) {
	for name, c := range map[string]struct {
		look  func(*Preparer, Node)
		after time.Duration
		found bool
	}{
		"the driver answers":      {func(p *Preparer, n Node) { p.SetNode(n) }, time.Second, true},
		"there is no driver":      {func(p *Preparer, _ Node) { p.NoDriver() }, time.Second, false},
		"the look takes too long": {nil, startPatience, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				running := r.start(t)
				p := New(running.Options)
				if c.look != nil {
					time.AfterFunc(time.Second, func() { c.look(p, *running.node.Load()) })
				}
				begun := time.Now()
				_, err := p.Prepare(testContext(t), r.claim("c", 0))
				if c.found != (err == nil) {
					t.Errorf("got %v", err)
				}
				if waited := time.Since(begun); waited != c.after {
					t.Errorf("it has waited %s, want %s", waited, c.after)
				}
			})
		})
	}
}

func TestAFailedPrepareLeavesNothing(t *testing.T) {
	broken := errors.New("libcuda.so.1 is missing")
	for name, tc := range map[string]struct {
		spoil func(t *testing.T, r *rig, p *Preparer)
		want  []string
	}{
		"no common edits": {
			spoil: func(_ *testing.T, r *rig, _ *Preparer) { r.edits.FailCommon(broken) },
			want:  []string{"claim default/c", "libcuda.so.1 is missing"},
		},
		"no edits of the second GPU": {
			spoil: func(_ *testing.T, r *rig, _ *Preparer) { r.edits.FailGPU(uuid(2), broken) },
			want:  []string{`claim default/c (UID uid-c): request "gpus"`, "libcuda.so.1 is missing"},
		},
		"the CDI file cannot be written": {
			spoil: func(t *testing.T, r *rig, _ *Preparer) {
				must(t, os.RemoveAll(r.cdiDir()))
			},
			want: []string{"claim default/c (UID uid-c): write the CDI specification", "--cdi-root"},
		},
		"the record cannot be written": {
			spoil: func(_ *testing.T, r *rig, p *Preparer) {
				p.SetNode(Node{Pool: pool(), Edits: hook{r.edits, func() error { return os.RemoveAll(r.claimsDir()) }}})
			},
			want: []string{"claim default/c", "could not be written to the journal"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, p := run(t)
			tc.spoil(t, r, p)
			claim := r.claim("c", 0, 2)
			refused(t, p, claim, tc.want...)
			r.edits.FailCommon(nil)
			r.edits.FailGPU(uuid(2), nil)
			p = r.start(t) // which makes the directories again
			r.expect(t)
			prepare(t, p, claim)
			r.expect(t, claim)
		})
	}
}

// hook does something before the first effect.
type hook struct {
	Edits
	before func() error
}

func (h hook) Common() (cdispec.ContainerEdits, error) {
	if err := h.before(); err != nil {
		return cdispec.ContainerEdits{}, err
	}
	return h.Edits.Common()
}

func TestManyClaimsFromManyGoroutines(t *testing.T) {
	r := newRig(t)
	processes := []*Preparer{r.start(t), r.start(t)} // as during a rolling update
	var claims []*resourceapi.ResourceClaim
	for minor := range gpuCount {
		claims = append(claims, r.claim(fmt.Sprint("c", minor), minor))
	}
	parallel(4*gpuCount, func(i int) {
		p, claim := processes[i%2], claims[i/4]
		for range 5 {
			if _, err := p.Prepare(testContext(t), claim); err != nil {
				t.Error(err)
			}
			if err := p.Unprepare(testContext(t), claim.UID); err != nil {
				t.Error(err)
			}
			if err := p.Reconcile(testContext(t)); err != nil {
				t.Error(err)
			}
		}
		if _, err := p.Prepare(testContext(t), claim); err != nil {
			t.Error(err)
		}
	})
	r.expect(t, claims...)
}

func parallel(n int, work func(i int)) {
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { work(i) })
	}
	group.Wait()
}

// Claims whose GPUs overlap in a circle must not wait for each other for ever.
func TestClaimsThatOverlapDoNotDeadlock(t *testing.T) {
	r := newRig(t)
	p := r.start(t, func(o *Options) { o.ReleaseWait = 10 * time.Second })
	parallel(gpuCount, func(i int) {
		claim := r.claim(fmt.Sprint("c", i), i, (i+1)%gpuCount)
		for range 5 {
			if _, err := p.Prepare(testContext(t), claim); err != nil {
				t.Error(err)
			}
			if err := p.Unprepare(testContext(t), claim.UID); err != nil {
				t.Error(err)
			}
		}
	})
	r.expect(t)
}

func TestWaitingForALockEndsWithTheCall(t *testing.T) {
	r := newRig(t)
	claim := r.claim("c", 0)
	unlock, err := r.start(t).Locks.Lock(testContext(t), claimKey(claim.UID))
	must(t, err)
	defer unlock()
	p := r.start(t)
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	_, err = p.Prepare(ctx, claim)
	fixture.Sentence(t, err, "claim default/c", "gave up waiting for the lock")
	fixture.Sentence(t, p.Unprepare(ctx, claim.UID), "claim uid-c", "gave up waiting for the lock")
	fixture.Sentence(t, p.RestoreSpec(ctx, claim.UID), "claim uid-c", "gave up waiting for the lock")
}

func TestPreparedCounts(t *testing.T) {
	r, p := run(t)
	for minor := range 3 {
		prepare(t, p, r.claim(fmt.Sprint("c", minor), minor))
	}
	r.boot = "boot-2"
	for boot, want := range map[*Preparer]int{p: 3, r.start(t): 0} {
		if got, err := boot.Prepared(testContext(t)); err != nil || len(got) != want {
			t.Errorf("got %d, %v; want %d", len(got), err, want)
		}
	}
}

func TestPhasesAreObserved(t *testing.T) {
	r := newRig(t)
	seen := &phaseLog{}
	p := r.start(t, func(o *Options) { o.Phases = seen })
	claim := r.claim("c", 0)
	prepare(t, p, claim)
	unprepare(t, p, claim)
	want := []string{
		"prepare lock-claim", "prepare lock-gpus", "prepare cdi", "prepare record",
		"unprepare lock-claim", "unprepare remove",
	}
	if !slices.Equal(seen.phases, want) {
		t.Errorf("got %q, want %q", seen.phases, want)
	}
}

type phaseLog struct{ phases []string }

func (l *phaseLog) ObservePhase(operation, phase string, duration time.Duration) {
	if duration >= 0 {
		l.phases = append(l.phases, operation+" "+phase)
	}
}
