package control

import (
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

const (
	scaleUpDelay = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"
	delayBefore  = "mica.gpu/scale-up-delay-before"
)

// marks are a pod's annotations for Cluster Autoscaler.
func (w *world) marks(pod string) map[string]string {
	w.t.Helper()
	marks := maps.Clone(get(w, &corev1.Pod{}, "default", pod).Annotations)
	maps.DeleteFunc(marks, func(key, _ string) bool { return key != scaleUpDelay && key != delayBefore })
	return marks
}

func budget(gpus int32) *v1alpha1.GPUBudget {
	return &v1alpha1.GPUBudget{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: v1alpha1.GPUBudgetSpec{GPUs: ptr.To(gpus)}}
}

// Under a budget, only pods for which the controller would ask for nodes are kept from Cluster Autoscaler.
func TestOnlyPlannedPodsAreKeptFromClusterAutoscaler(t *testing.T) {
	unknown := func() client.Object {
		return group("p6-b300", func(g *v1alpha1.GPUNodeGroup) { g.Spec.InstanceType = "p6-b300.48xlarge" })
	}
	observed := func(g *v1alpha1.GPUNodeGroup) { g.Spec.Pairing = v1alpha1.PairingObserve }
	neuron := func(objects []client.Object) {
		objects[0].(*resourceapi.ResourceClaimTemplate).Spec.Spec.Devices.Requests[0].Exactly.DeviceClassName = "neuron.amazonaws.com"
	}
	for name, test := range map[string]struct {
		groups []client.Object
		change func(objects []client.Object)
		kept   bool
	}{
		"planned": {[]client.Object{group("g6")}, func([]client.Object) {}, true},
		"spread by zone, which is not planned": {[]client.Object{group("g6")}, func(objects []client.Object) {
			objects[1].(*corev1.Pod).Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}},
			}}
		}, false},
		"near pods of other namespaces, which is not planned": {[]client.Object{group("g6")}, func(objects []client.Object) {
			objects[1].(*corev1.Pod).Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{}, NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
				}},
			}}
		}, false},
		"another driver's claim":                          {[]client.Object{group("g6")}, neuron, false},
		"another driver's claim, beside unknown machines": {[]client.Object{unknown()}, neuron, false},
		"machines that are unknown":                       {[]client.Object{unknown()}, func([]client.Object) {}, false},
		"unknown machines beside others":                  {[]client.Object{unknown(), group("g6")}, func([]client.Object) {}, true},
		"a group that an administrator makes grow":        {[]client.Object{group("g6", observed)}, func([]client.Object) {}, false},
		"such a group beside another":                     {[]client.Object{group("g6", observed), group("g5")}, func([]client.Object) {}, true},
	} {
		t.Run(name, func(t *testing.T) {
			objects := oneGPU(1)
			test.change(objects)
			class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "neuron.amazonaws.com"}, Spec: resourceapi.DeviceClassSpec{
				Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "neuron.amazonaws.com"`}}},
			}}
			w := newWorld(t, append(append(objects, test.groups...), class, budget(800))...)
			w.pass()
			if _, kept := w.marks("pod-0")[scaleUpDelay]; kept != test.kept {
				t.Errorf("the pod is kept from Cluster Autoscaler: %t, want %t", kept, test.kept)
			}
		})
	}
}

func TestAPassReturnsWhenADelayIsRenewed(t *testing.T) {
	w := newWorld(t, append(oneGPU(1), group("g6"), budget(0))...)
	w.pass()
	again, err := w.loop.Pass(t.Context())
	if due := w.clock.Now().Add(30*time.Minute + time.Second); err != nil || again.IsZero() || again.After(due) {
		t.Errorf("the next pass is at %s, %v; want %s or sooner", again, err, due)
	}
}
