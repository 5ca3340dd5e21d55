//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// TestHoldsOfADeadControllerAreReleased runs the chart's CronJob now, while no controller runs: a node whose hold has
// expired is free again, and one whose hold has not stays as it is. Apart from the other tests, which need a controller.
func TestHoldsOfADeadControllerAreReleased(t *testing.T) {
	s := &scaleOut{scenario: newScenario(t, 0)}
	s.stopControllers()
	held := func(name string, until time.Time) string {
		node, err := s.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: s.namespace + "-" + name, Labels: map[string]string{"nvidia.com/gpu.present": "true"},
				Annotations: map[string]string{
					v1alpha1.AnnotationScaleDownDisabled: "true", v1alpha1.AnnotationProtected: "use",
					v1alpha1.AnnotationHeldUntil: until.UTC().Format(time.RFC3339),
				},
			},
			// The node is none that a pod could go to.
			Spec: corev1.NodeSpec{Unschedulable: true},
		}, metav1.CreateOptions{})
		must(t, err, "create a node")
		t.Cleanup(func() {
			err := s.client.CoreV1().Nodes().Delete(context.Background(), node.Name, metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Errorf("delete node %s: %v", node.Name, err)
			}
		})
		return node.Name
	}
	expired, renewed := held("expired", time.Now().Add(-time.Minute)), held("renewed", time.Now().Add(time.Hour))

	jobs := s.client.BatchV1().Jobs(s.plugin.namespace)
	crons, err := s.client.BatchV1().CronJobs(s.plugin.namespace).List(t.Context(), metav1.ListOptions{})
	must(t, err, "list the chart's CronJobs")
	if len(crons.Items) != 1 {
		t.Fatalf("the chart has %d CronJobs, want 1", len(crons.Items))
	}
	job, err := jobs.Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "release-now-"}, Spec: crons.Items[0].Spec.JobTemplate.Spec,
	}, metav1.CreateOptions{})
	must(t, err, "run the CronJob now")
	t.Cleanup(func() {
		err := jobs.Delete(context.Background(), job.Name, metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)})
		if err != nil {
			t.Errorf("delete Job %s: %v", job.Name, err)
		}
	})
	eventually(t, startTimeout, "the Job has ended well", func(ctx context.Context) error {
		job, err := jobs.Get(ctx, job.Name, metav1.GetOptions{})
		if err == nil && job.Status.Succeeded == 0 {
			err = fmt.Errorf("its status is %+v", job.Status)
		}
		return err
	})
	annotations := func(name string) map[string]string {
		node, err := s.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		must(t, err, "get a node")
		if !node.Spec.Unschedulable {
			t.Errorf("%s is not cordoned any more, and the cordon was not the controller's", name)
		}
		return node.Annotations
	}
	for _, key := range []string{v1alpha1.AnnotationScaleDownDisabled, v1alpha1.AnnotationProtected, v1alpha1.AnnotationHeldUntil} {
		if value, stays := annotations(expired)[key]; stays {
			t.Errorf("the node whose hold has expired still has %s=%s", key, value)
		}
		if _, stays := annotations(renewed)[key]; !stays {
			t.Errorf("the node whose hold has not expired has lost %s", key)
		}
	}
}
