//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// testKEDAUse has a replica more for what the devices tell that its pods hold, through the node's
// plugin, while a neighbor's device has nothing left.
func testKEDAUse(t *testing.T) {
	t.Parallel()
	for _, metric := range []string{"gpuUtilization", "gpuMemory"} {
		t.Run(metric, func(t *testing.T) {
			t.Parallel()
			sim := under.onSimulator(t)
			s := &scaleOut{scenario: newScenario(t, 3)}
			s.createTemplate("one", s.claimFor(1))
			s.createPod(s.ending(s.podFromTemplate("neighbor", "one")))
			sim.use(s.expectOwnDevices("neighbor")[0], 100)

			pod := s.ending(s.podFromTemplate("", "one"))
			pod.Annotations = map[string]string{"mica.gpu/manage-deletion-cost": "true"}
			d := s.newScaled("used", pod)
			d.startWith(1)
			first := d.onlyPod()
			own := s.expectOwnDevices(first)[0]
			sim.use(own, 50)
			// The plugin reports a mean over seconds, at first over earlier ones.
			d.scaledWithin(1, 5, d.byMica(fields{"metric": metric, "target": "Deployment/used", "threshold": "60"}))
			d.expectMetric("50")
			sim.use(own, 90)
			d.expectReplicas(2)
			d.expectMetric("90") // the mean of 90 and 0, for two
			if metric == "gpuUtilization" {
				d.expectIdleToGo(sim, first, own)
			}
		})
	}
}

// expectIdleToGo makes the newer of two replicas the busier one: without a deletion cost a
// ReplicaSet would take that.
func (s *scaled) expectIdleToGo(sim simulator, first string, own device) {
	s.Helper()
	newer := slices.DeleteFunc(s.awaitServing(2, 2), func(name string) bool { return name == first })[0]
	busy := s.expectOwnDevices(newer)[0]
	// In steps whose sum always asks for two replicas: the plugin may sample one GPU before the other.
	sim.use(busy, 25)
	s.expectMetric("115")
	sim.use(own, 40)
	s.expectMetric("65")
	sim.use(busy, 75)
	eventually(s, scaleTimeout, "the busier replica costs more", func(ctx context.Context) error {
		pods, err := s.pods(ctx)
		if err != nil {
			return err
		}
		costs := map[string]int{}
		for _, pod := range pods {
			costs[pod.Name], _ = strconv.Atoi(pod.Annotations[corev1.PodDeletionCost]) // none is 0
		}
		if costs[newer] <= costs[first] {
			return fmt.Errorf("%s is the busier one of %v", newer, costs)
		}
		return nil
	})
	sim.use(own, 0)
	sim.use(busy, 50)
	if left := s.awaitServing(1, 1); left[0] != newer {
		s.Errorf("%s is left, where %s was busy", left[0], newer)
	}
}

// testKEDAHold has a GPU that one answer makes 100 % busy, under the ScaledObject that the command
// prints: it keeps the replicas that there are, and requests that wait ask for more.
func testKEDAHold(t *testing.T) {
	t.Parallel()
	sim := under.onSimulator(t)
	s := &scaleOut{scenario: newScenario(t, 3)}
	s.createTemplate("one", s.claimFor(1))
	d := s.newScaled("held", s.ending(s.podFromTemplate("", "one")))
	d.startWith(1)
	sim.use(s.expectOwnDevices(d.onlyPod())[0], 100)
	d.waiting(0)
	s.applyAsUser(s.printScaledObject("deployment/held --profile realtime --model held --max 3"))
	t.Cleanup(d.unscale)
	d.expectDecision("composite-metric", "1", 1)
	d.waiting(25)
	d.expectReplicas(3)
}

// expectDecision waits until the autoscaler has read a value for a replica of the metric, and
// wants so many replicas.
func (s *scaled) expectDecision(metric, perReplica string, want int32) {
	s.Helper()
	eventually(s, scaleTimeout, fmt.Sprintf("the HorizontalPodAutoscaler reads %s of %s and wants %d replicas", perReplica, metric, want), func(ctx context.Context) error {
		autoscaler, err := s.autoscaler(ctx)
		if err != nil {
			return err
		}
		for _, status := range autoscaler.Status.CurrentMetrics {
			if e := status.External; e != nil && e.Metric.Name == metric && e.Current.AverageValue != nil &&
				e.Current.AverageValue.Cmp(resource.MustParse(perReplica)) == 0 && autoscaler.Status.DesiredReplicas == want {
				return nil
			}
		}
		return fmt.Errorf("it wants %d, and reads %v", autoscaler.Status.DesiredReplicas, autoscaler.Status.CurrentMetrics)
	})
}

// use sets how busy a GPU is, and how full, for the time of the test.
func (sim simulator) use(d device, percent int) {
	sim.Helper()
	index, memory := sim.gpu(d).Index, d.Capacity["memory"].Value
	sim.Cleanup(func() {
		must(sim, sim.control.SetUse(index, nil, model.Use{Utilization: new(int), MemoryBytes: new(uint64)}), "let GPU %d rest", index)
	})
	must(sim, sim.control.SetUse(index, nil, model.Use{
		Utilization: &percent, MemoryBytes: ptr.To(uint64(memory.Value()) * uint64(percent) / 100),
	}), "use GPU %d", index)
}

// startWith has replicas before KEDA scales.
func (s *scaled) startWith(count int32) {
	s.Helper()
	_, err := s.client.AppsV1().Deployments(s.namespace).UpdateScale(s.Context(), s.name, &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Name: s.name, Namespace: s.namespace}, Spec: autoscalingv1.ScaleSpec{Replicas: count},
	}, metav1.UpdateOptions{})
	must(s, err, "scale Deployment %s", s.name)
	s.expectReplicas(count)
}

// onlyPod is the name of the Deployment's one pod.
func (s *scaled) onlyPod() string {
	s.Helper()
	pods, err := s.client.CoreV1().Pods(s.namespace).List(s.Context(), metav1.ListOptions{LabelSelector: "app=" + s.name})
	must(s, err, "list the pods of %s", s.name)
	if len(pods.Items) != 1 {
		s.Fatalf("%s has %d pods, want 1", s.name, len(pods.Items))
	}
	return pods.Items[0].Name
}
