package view

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

func testPlaceholder(group, name string, age time.Duration, node string) *corev1.Pod {
	controller := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "mica",
			Labels:            map[string]string{v1alpha1.LabelNodeGroup: group, v1alpha1.LabelKind: "k"},
			CreationTimestamp: metav1.NewTime(t0.Add(-age)),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "GPUNodeGroup", Name: group, UID: "u", Controller: &controller,
			}},
		},
		Spec: corev1.PodSpec{NodeName: node},
	}
}

func TestInFlightIsWhatHasNoNodeYet(t *testing.T) {
	direct := func(entries ...v1alpha1.InFlight) *v1alpha1.GPUNodeGroup {
		return testGroup("g", pool("g"), func(g *v1alpha1.GPUNodeGroup) {
			g.Spec.Pairing, g.Status.InFlight = v1alpha1.PairingDirect, entries
		})
	}
	entry := func(id string, nodes int32, age time.Duration) v1alpha1.InFlight {
		return v1alpha1.InFlight{ID: id, Nodes: nodes, Target: 9, Since: metav1.NewTime(t0.Add(-age))}
	}
	own := testGroup("g", pool("g"))
	deleting := testPlaceholder("g", "deleting", time.Minute, "")
	deleting.DeletionTimestamp = &metav1.Time{Time: t0}
	failed := testPlaceholder("g", "failed", time.Minute, "")
	failed.Status.Phase = corev1.PodFailed
	for name, test := range map[string]struct {
		group        *v1alpha1.GPUNodeGroup
		nodes        []*corev1.Node
		placeholders []*corev1.Pod
		want         string
	}{
		"none": {group: own},
		"two that wait": {
			group:        own,
			placeholders: []*corev1.Pod{testPlaceholder("g", "b", time.Minute, ""), testPlaceholder("g", "a", 2*time.Minute, "")},
			want:         "a:1 b:1",
		},
		"one whose node is not seen yet": {
			group:        own,
			placeholders: []*corev1.Pod{testPlaceholder("g", "a", 2*time.Minute, "unseen")},
			want:         "a:1",
		},
		"another group's, deleted and failed ones": {
			group:        own,
			placeholders: []*corev1.Pod{testPlaceholder("h", "x", time.Minute, ""), deleting, failed},
		},
		"a node came after": {
			group:        own,
			nodes:        []*corev1.Node{testNode("new", time.Minute, nil)},
			placeholders: []*corev1.Pod{testPlaceholder("g", "a", 3*time.Minute, ""), testPlaceholder("g", "b", 2*time.Minute, "")},
			want:         "b:1",
		},
		"a node was there before": {
			group:        own,
			nodes:        []*corev1.Node{testNode("old", time.Hour, nil)},
			placeholders: []*corev1.Pod{testPlaceholder("g", "a", time.Minute, "")},
			want:         "a:1",
		},
		"a node of the same second is no answer": {
			group:        own,
			nodes:        []*corev1.Node{testNode("old", time.Minute, nil)},
			placeholders: []*corev1.Pod{testPlaceholder("g", "a", time.Minute, "")},
			want:         "a:1",
		},
		"a node has its own placeholder": {
			group:        own,
			nodes:        []*corev1.Node{testNode("new", time.Minute, nil)},
			placeholders: []*corev1.Pod{testPlaceholder("g", "a", 3*time.Minute, ""), testPlaceholder("g", "b", 2*time.Minute, "new")},
			want:         "a:1",
		},
		"a call of EKS, half met": {
			group: direct(entry("u1", 3, 5*time.Minute)),
			nodes: []*corev1.Node{testNode("old", time.Hour, nil), testNode("new", time.Minute, nil)},
			want:  "u1:2",
		},
		"a call of EKS, met in the same second": {
			group: direct(entry("u1", 1, time.Minute)),
			nodes: []*corev1.Node{testNode("new", time.Minute, nil)},
		},
		"entries of a group that is direct no more": {
			group: testGroup("g", pool("g"), func(g *v1alpha1.GPUNodeGroup) { g.Status.InFlight = []v1alpha1.InFlight{entry("u1", 3, time.Minute)} }),
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, entry := range inFlight(test.group, test.nodes, test.placeholders) {
				got = append(got, fmt.Sprintf("%s:%d", entry.ID, entry.Nodes))
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("in flight is %q, want %q", got, test.want)
			}
		})
	}
}
