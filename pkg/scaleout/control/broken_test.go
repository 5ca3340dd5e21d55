package control

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// Each node that comes and never publishes its GPUs is paid for until it is given up. With a wait of
// an hour at most, a driver that fails to load would buy twenty a day.
func TestNodesThatNeverPublishBackOffToADay(t *testing.T) {
	w := newWorld(t, append(oneGPU(1), group("broken"))...)
	w.noSlices = true
	bought := w.boughtWithin(3*24*time.Hour, func() {
		w.autoscale()
		for _, node := range all(w, &corev1.NodeList{}).Items {
			if w.clock.Since(node.CreationTimestamp.Time) > 40*time.Minute {
				w.end(&node)
			}
		}
	})
	if len(bought) < 8 || len(bought) > 12 {
		t.Errorf("in three days, nodes were bought after %v, want 8 to 12", bought)
	}
	for i := 4; i < len(bought); i++ {
		if wait, before := bought[i]-bought[i-1], bought[i-1]-bought[i-2]; wait < min(2*(before-40*time.Minute), 24*time.Hour) {
			t.Errorf("node %d was bought %s after the one before, at %s: the wait has not doubled", i+1, wait, bought[i])
		}
	}
	w.expectCondition("broken", v1alpha1.ConditionInBackoff, metav1.ConditionTrue, v1alpha1.ReasonNodeIncomplete)
	w.noSlices = false
	w.clock.Step(24 * time.Hour)
	w.run(10 * time.Minute)
	w.expectCondition("broken", v1alpha1.ConditionInBackoff, metav1.ConditionFalse, v1alpha1.ReasonNoBackoff)
}
