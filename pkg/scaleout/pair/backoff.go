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
	// backoffIncomplete is backoffMost after nodes that came and did not become complete: each
	// is paid for until it ends, and the next is like it until a person mends something.
	backoffIncomplete = 24 * time.Hour
	// backoffMemory is how long after its end failures in a row are remembered, beyond the
	// time that a further attempt may take.
	backoffMemory = time.Hour
	// maxMessage is what the status allows.
	maxMessage = 512
)

// fail is the backoff after one more failure. A failure during a backoff belongs to the one
// before: placeholders of one attempt do not expire in the same second. Failures of another reason
// count as far as they lead to backoffMost, so that no machine at AWS is no day without a try.
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

// failuresOfAnother is after how many failures the wait is backoffMost.
const failuresOfAnother = 5

// backoffWait doubles with every failure.
func backoffWait(failures int32, reason string) time.Duration {
	// A forged count is over every bound, as 16 doublings are.
	if failures < 1 || failures > 16 {
		return backoffLimit(reason)
	}
	return min(backoffFirst<<(failures-1), backoffLimit(reason))
}

// backoffLimit is the longest wait after failures of a reason.
func backoffLimit(reason string) time.Duration {
	if reason == v1alpha1.ReasonNodeIncomplete {
		return backoffIncomplete
	}
	return backoffMost
}

// succeeded tells that a node has become complete since a backoff began. One that was there
// long before shows nothing: it seems new each time that it is Ready again, or publishes anew.
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

// backedOff tells whether the group may not grow now.
func backedOff(b *v1alpha1.Backoff, now time.Time) bool {
	return b != nil && now.Before(b.Until.Time)
}

// remembered is what of a backoff still counts: one that ends later than any can was made by
// a clock that ran ahead, and one long over is forgotten.
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
