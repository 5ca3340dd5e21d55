package control

import (
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A CronJob whose Jobs end after half an hour has a new pod each time. Without a memory of workloads, each would get a node
// that it cannot use: 24 in half a day.
func TestAPodMadeAnewThatNoNodeHelpsHasHoursOfBackoff(t *testing.T) {
	w, others := beginPlaceholder(t, oneGPU(0)...)
	pod := w.makeAnew(nil)
	bought := w.boughtWithin(12*time.Hour, func() {
		if w.clock.Since(pod.CreationTimestamp.Time) >= 30*time.Minute {
			pod = w.makeAnew(pod)
		}
		others()
		w.restart() // each leader continues from the API server's state
	})
	if len(bought) < 3 || len(bought) > 5 {
		t.Errorf("in twelve hours, nodes were bought after %v, want 3 to 5", bought)
	}
}

// makeAnew replaces the pod of a CronJob by one of its next Job. Nil: there is none yet.
func (w *world) makeAnew(before *corev1.Pod) *corev1.Pod {
	w.t.Helper()
	if before != nil {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: before.Namespace, Name: before.Name + "-gpu"}}
		for _, err := range []error{w.client.Delete(w.t.Context(), before), w.client.Delete(w.t.Context(), claim)} {
			if err != nil {
				w.t.Fatal(err)
			}
		}
	}
	pod := oneGPU(1)[1].(*corev1.Pod)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("train-%d", w.clock.Now().Unix()/60), UID: types.UID(fmt.Sprint(w.uids))}}
	pod.GenerateName = job.Name + "-"
	pod.Name = pod.GenerateName + "abcde"
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))}
	w.create(pod)
	w.try(pod)
	pod.Status.Conditions[0].Message = unbound
	w.updateStatus(pod)
	return pod
}
