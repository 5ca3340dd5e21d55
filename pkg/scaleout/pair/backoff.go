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
	// backoffMemory is how long after its end failures in a row are remembered, beyond the
	// time that a further attempt may take.
	backoffMemory = time.Hour
	// maxMessage is what the status allows.
	maxMessage = 512
)

// fail is the backoff after one more failure. A failure during a backoff belongs to the one
// before: placeholders of one attempt do not expire in the same second.
func fail(previous *v1alpha1.Backoff, now time.Time, reason, message string) *v1alpha1.Backoff {
	if backedOff(previous, now) && previous.Reason == reason {
		return previous
	}
	failures := int32(1)
	if previous != nil {
		failures = min(previous.Failures, 1000) + 1
	}
	return &v1alpha1.Backoff{
		Until:    metav1.NewTime(now.Add(backoffWait(failures)).Truncate(time.Second)),
		Failures: failures,
		Reason:   reason,
		Message:  excerpt.Of(message, maxMessage),
	}
}

// backoffWait doubles with every failure.
func backoffWait(failures int32) time.Duration {
	if failures < 1 || failures > 4 {
		return backoffMost
	}
	return backoffFirst << (failures - 1)
}

// succeeded tells that a node has become complete since a backoff began. One that was there
// long before shows nothing: it seems new each time that it is Ready again, or publishes anew.
func succeeded(group *view.Group, b *v1alpha1.Backoff, timeout time.Duration) bool {
	begun := b.Until.Add(-backoffWait(b.Failures))
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
	case b.Until.After(now.Add(backoffMost)):
		shorter := b.DeepCopy()
		shorter.Until = metav1.NewTime(now.Add(backoffMost).Truncate(time.Second))
		return shorter
	}
	return b
}
