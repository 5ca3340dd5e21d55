package control

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// A tenant's pod with the label and the owner of a placeholder, which no node has room for, neither stops the growth of the
// group nor is deleted.
func TestAForgedPlaceholderIsIgnored(t *testing.T) {
	w := newWorld(t)
	g := group("g")
	w.create(g)
	w.create(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "tenant", Name: "forged", Labels: map[string]string{v1alpha1.LabelNodeGroup: g.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(g, v1alpha1.GroupVersion.WithKind("GPUNodeGroup"))},
		},
		Spec:   corev1.PodSpec{NodeSelector: map[string]string{"no": "node"}, Containers: []corev1.Container{{Name: "c"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	})
	w.createAndTry(oneGPU(1)...)
	w.run(30 * time.Minute)
	if pod := get(w, &corev1.Pod{}, "default", "pod-0"); pod.Spec.NodeName == "" {
		t.Errorf("the pod has no node after half an hour; the group: %+v", w.status("g"))
	}
	get(w, &corev1.Pod{}, "tenant", "forged")
}
