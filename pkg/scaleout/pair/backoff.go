package pair

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Bounds of a backoff.
const (
	backoffFirst = 5 * time.Minute
	backoffMost  = time.Hour
	// backoffIncomplete replaces backoffMost after incomplete nodes: they cost money, and the next is like them until an
	// administrator fixes the cause.
	backoffIncomplete = 24 * time.Hour
	// backoffMemory is how long after its end, and another attempt, a backoff is remembered.
	backoffMemory = time.Hour
	// maxMessage is the limit of the status.
	maxMessage = 512
	// failuresOfAnother is the failure from which the wait is backoffMost.
	failuresOfAnother = 5
)

// fail is the backoff after another failure. A failure during a backoff belongs to the same attempt. Failures for another
// reason count up to backoffMost, so that a missing machine at AWS does not cause a backoff of a day.
func fail(previous *v1alpha1.Backoff, now time.Time, reason, message string) *v1alpha1.Backoff {
	if backedOff(previous, now) && previous.Reason != v1alpha1.ReasonAutoscalerBackedOff {
		return previous
	}
	failures := int32(1)
	if previous != nil {
		failures = min(previous.Failures, 1000) + 1
		if previous.Reason != reason {
			failures = min(failures, failuresOfAnother)
		}
	}
	return &v1alpha1.Backoff{
		Until:    metav1.NewTime(now.Add(backoffWait(failures, reason)).Truncate(time.Second)),
		Failures: failures,
		Reason:   reason,
		Message:  excerpt.Of(message, maxMessage),
	}
}

// backoffWait doubles with every failure.
func backoffWait(failures int32, reason string) time.Duration {
	// 16 doublings exceed every limit, and a forged count may overflow.
	if failures < 1 || failures > 16 {
		return backoffLimit(reason)
	}
	return min(backoffFirst<<(failures-1), backoffLimit(reason))
}

// backoffLimit is the longest wait for a reason.
func backoffLimit(reason string) time.Duration {
	if reason == v1alpha1.ReasonNodeIncomplete {
		return backoffIncomplete
	}
	return backoffMost
}

// succeeded reports whether a node has become complete since the backoff began. Nodes from long before do not count: they
// become complete again whenever they are Ready again or republish.
func succeeded(group *view.Group, b *v1alpha1.Backoff, timeout time.Duration) bool {
	begun := b.Until.Add(-backoffWait(b.Failures, b.Reason))
	for i := range group.Nodes {
		node := &group.Nodes[i]
		if node.Complete() && node.CompleteSince().After(begun) && node.Object.CreationTimestamp.After(begun.Add(-timeout)) {
			return true
		}
	}
	return false
}

// backedOff reports whether the group may not grow now.
func backedOff(b *v1alpha1.Backoff, now time.Time) bool {
	return b != nil && now.Before(b.Until.Time)
}

// remembered is the part of a backoff that still counts. A backoff that is too long came from a clock that ran ahead.
func remembered(b *v1alpha1.Backoff, now time.Time, timeout time.Duration) *v1alpha1.Backoff {
	switch {
	case b == nil || now.After(b.Until.Add(timeout+backoffMemory)):
		return nil
	case b.Until.After(now.Add(backoffLimit(b.Reason))):
		shorter := b.DeepCopy()
		shorter.Until = metav1.NewTime(now.Add(backoffLimit(b.Reason)).Truncate(time.Second))
		return shorter
	}
	return b
}
