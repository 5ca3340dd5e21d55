package view

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A node that is not known to be Ready is neither complete nor let through the gate.
func TestOnlyANodeThatIsReadyCountsAsReady(t *testing.T) {
	for status, want := range map[corev1.ConditionStatus]bool{corev1.ConditionTrue: true, corev1.ConditionFalse: false, corev1.ConditionUnknown: false} {
		node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: status}, {Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue},
		}}}
		if state := newNodeState(node, nil, ""); state.Ready != want || state.Complete() != want {
			t.Errorf("with Ready %s, a node is ready: %t, complete: %t", status, state.Ready, state.Complete())
		}
	}
}
