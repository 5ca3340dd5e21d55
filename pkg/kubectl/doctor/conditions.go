package doctor

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

func conditionChecks() []Check {
	return []Check{{
		Name:     "conditions",
		Severity: Error,
		Finds: "A GPUPolicy, GPUNodeGroup or GPUHeadroom has a condition that reports a problem, or a node has sick GPUs (" +
			v1alpha1.ConditionGPUsHealthy + "). The message is the controller's.",
		Fix:   "kubectl describe OBJECT",
		needs: []Kind{KindNodes, KindGroups, KindPolicies, KindHeadrooms},
		find:  badConditions,
	}}
}

// adverse conditions report a problem when they are True; all others when they are False.
var adverse = []string{v1alpha1.ConditionInBackoff, v1alpha1.ConditionNodesStuck, v1alpha1.ConditionOutlastsAutoscaler}

func badConditions(f *Facts) []Finding {
	var found []Finding
	add := func(object, kind, reason, message string) {
		severity := Warning
		if kind == v1alpha1.ConditionNodesStuck {
			severity = Error
		}
		found = append(found, Finding{Severity: severity, Object: object, Message: reason + ": " + message, names: map[string]string{"OBJECT": object}})
	}
	addAll := func(object string, conditions []metav1.Condition) {
		for _, c := range conditions {
			bad := metav1.ConditionFalse
			if slices.Contains(adverse, c.Type) {
				bad = metav1.ConditionTrue
			}
			if c.Status == bad && c.Reason != v1alpha1.ReasonFilling {
				add(object, c.Type, c.Reason, c.Message)
			}
		}
	}
	for _, policy := range f.Policies {
		addAll("gpupolicy/"+policy.Name, policy.Status.Conditions)
	}
	for _, group := range f.Groups {
		addAll("gpunodegroup/"+group.Name, group.Status.Conditions)
	}
	for _, headroom := range f.Headrooms {
		addAll("gpuheadroom/"+headroom.Name, headroom.Status.Conditions)
	}
	for _, node := range f.Nodes {
		for _, c := range node.Status.Conditions {
			if c.Type == v1alpha1.ConditionGPUsHealthy && c.Status == corev1.ConditionFalse {
				add("node/"+node.Name, string(c.Type), c.Reason, c.Message)
			}
		}
	}
	return found
}
