package helm_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The toleration is added to the others of a DaemonSet, and to no DaemonSet that tolerates the taint already.
func TestDaemonSetsOfTheNamespacesTolerateTheStartupTaint(t *testing.T) {
	policy := mutatingPolicy(t, "daemonsets-")
	ours := corev1.Toleration{Key: startupTaint, Operator: corev1.TolerationOpExists}
	gpus := corev1.Toleration{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
	for name, test := range map[string]struct{ has, want []corev1.Toleration }{
		"none":                  {nil, []corev1.Toleration{ours}},
		"another":               {[]corev1.Toleration{gpus}, []corev1.Toleration{gpus, ours}},
		"all of another effect": {[]corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}, []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}, ours}},
		"a value of it":         {[]corev1.Toleration{{Key: startupTaint, Value: "x"}}, []corev1.Toleration{{Key: startupTaint, Value: "x"}, ours}},
		"the taint":             {[]corev1.Toleration{ours}, []corev1.Toleration{ours}},
		"all taints":            {[]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}},
	} {
		t.Run(name, func(t *testing.T) {
			set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "gpu-operator", Name: "driver"}}
			set.Spec.Template.Spec.Tolerations = test.has
			got := policy.mutate(t, set, appsv1.SchemeGroupVersion.WithKind("DaemonSet"), nil).(*appsv1.DaemonSet)
			if diff := cmp.Diff(test.want, got.Spec.Template.Spec.Tolerations); diff != "" {
				t.Errorf("tolerations (-want +got):\n%s", diff)
			}
		})
	}
}
