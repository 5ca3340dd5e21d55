package scan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	firstOfPinned  = "pinned TriggeredScaleUp: pod triggered scale-up: [{h100 0->1 (max: 5)}]"
	secondOfPinned = "pinned TriggeredScaleUp: pod triggered scale-up: [{h100 1->2 (max: 5)}]"
)

// asked is a rig that waits for a node since start.
func asked(t *testing.T) *rig {
	r := newRig(t, group("h100"))
	r.pod("pinned", pinned("h100"))
	expect(t, "at first", r.scan(), firstOfPinned)
	return r
}

func TestANodeThatTakesTooLongIsAskedForAgainAfterABackoff(t *testing.T) {
	r := asked(t)
	r.after(time.Minute)
	r.join("slow")
	r.after(14 * time.Minute)
	expect(t, "after 15 minutes", r.scan())
	r.after(10 * time.Second)
	result := r.scan()
	expect(t, "a scan later", result, "pinned NotTriggerScaleUp: pod didn't trigger scale-up: 1 in backoff after failed scale-up")
	if up := result.Status.NodeGroups[0].ScaleUp; up.Status != "Backoff" || up.BackoffInfo.ErrorCode != "timeout" ||
		up.BackoffInfo.ErrorMessage != "Scale-up timed out for node group h100 after 15m10s" {
		t.Errorf("the status says %+v", up)
	}
	if len(result.Sizes) > 0 {
		t.Errorf("a node that has joined is taken back: %v", result.Sizes)
	}
	r.after(5 * time.Minute)
	expect(t, "after the backoff", r.scan(), secondOfPinned)
}

func TestANodeThatIsUnreadyForTooLongIsAskedForAgainAtOnce(t *testing.T) {
	r := asked(t)
	r.options.MaxProvision = 30 * time.Minute
	r.after(time.Minute)
	r.join("slow")
	r.after(15*time.Minute - time.Second)
	expect(t, "before 15 minutes", r.scan())
	r.after(time.Second)
	result := r.scan()
	expect(t, "after 15 minutes", result, secondOfPinned)
	if counts := result.Status.NodeGroups[0].Health.NodeCounts.Registered; counts.Unready.Total != 1 || counts.NotStarted != 0 {
		t.Errorf("it counts %+v", counts)
	}
}

func TestAMachineThatDoesNotJoinIsEnded(t *testing.T) {
	r := asked(t)
	r.after(15*time.Minute + time.Second)
	if result := r.scan(); result.Sizes["h100"] != 0 || len(result.Sizes) != 1 {
		t.Errorf("it asks for %v", result.Sizes)
	}
}

// A pod that is on the node that starts asks for nothing, whatever the clocks do.
func TestAPodOnItsNodeAsksForNoOther(t *testing.T) {
	r := asked(t)
	r.after(time.Minute)
	r.join("slow")
	bind(r.state.Pods[0], "slow")
	for range 40 {
		r.after(time.Minute)
		if result := r.scan(); len(result.Sizes) > 0 || len(result.Events) > 0 {
			t.Fatalf("at %s it asks for %v and says %q", r.state.Now, result.Sizes, says(result))
		}
	}
}

// Scale-ups of other clients are not waited for.
func TestASizeSetByAnotherIsNotUpcoming(t *testing.T) {
	r := newRig(t, group("h100"))
	r.state.Groups[0].Target = 1
	r.pod("pinned", pinned("h100"))
	expect(t, "a machine is to come", r.scan(), secondOfPinned)
	r.pod("other", pinned("h100"), func(p *corev1.Pod) { p.Spec.NodeSelector["x"] = "y" })
	expect(t, "then", r.scan(), "other NotTriggerScaleUp: pod didn't trigger scale-up: 1 node(s) didn't match Pod's node affinity/selector")
}
