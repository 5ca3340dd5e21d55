package pair

import (
	"strings"
	"testing"
	"time"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// A node that does not publish costs until it ends, one that AWS does not have costs nothing.
func TestIncompleteNodesBackOffToADay(t *testing.T) {
	now := epoch
	var b *v1alpha1.Backoff
	step := func(reason string, want time.Duration) {
		t.Helper()
		b = fail(b, now, reason, "")
		if got := b.Until.Sub(now); got != want {
			t.Errorf("failure %d, of %s: for %s, want %s", b.Failures, reason, got, want)
		}
		if again := fail(b, now.Add(time.Second), v1alpha1.ReasonScaleUpFailed, "the next of the same attempt"); again != b {
			t.Error("a second failure of one attempt counts")
		}
		if kept := remembered(b, now, time.Minute); kept != b {
			t.Errorf("remembered is %v of %v", kept, b)
		}
		now = b.Until.Add(time.Minute)
	}
	const incomplete = v1alpha1.ReasonNodeIncomplete
	for _, minutes := range []time.Duration{5, 10, 20, 40, 80, 160, 320, 640, 1280, 1440, 1440} {
		step(incomplete, minutes*time.Minute)
	}
	step(v1alpha1.ReasonScaleUpFailed, time.Hour)
	for range 20 {
		step(v1alpha1.ReasonScaleUpFailed, time.Hour)
	}
	step(incomplete, 80*time.Minute)
	step(incomplete, 160*time.Minute)
}

func TestBackoffDoublesAndIsForgotten(t *testing.T) {
	now := epoch
	var b *v1alpha1.Backoff
	for i, want := range []time.Duration{5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 40 * time.Minute, time.Hour, time.Hour} {
		b = fail(b, now, v1alpha1.ReasonScaleUpFailed, strings.Repeat("ö", 400))
		if got := b.Until.Sub(now); got != want {
			t.Errorf("failure %d: for %s, want %s", i+1, got, want)
		}
		if len(b.Message) > maxMessage {
			t.Errorf("the message is %d bytes long", len(b.Message))
		}
		if again := fail(b, now.Add(time.Second), v1alpha1.ReasonScaleUpFailed, "the next of the same attempt"); again != b {
			t.Error("a second failure of one attempt counts")
		}
		now = b.Until.Add(time.Minute)
	}
	if got := remembered(b, b.Until.Add(30*time.Minute), 30*time.Minute); got == nil {
		t.Error("forgotten while the next attempt may still fail")
	}
	if got := remembered(b, b.Until.Add(91*time.Minute), 30*time.Minute); got != nil {
		t.Error("remembered for ever")
	}
	ahead := b.Until.Add(-24 * time.Hour)
	if got := remembered(b, ahead, time.Minute).Until.Sub(ahead); got > backoffMost {
		t.Errorf("a clock that ran ahead closes the group for %s", got)
	}
}
