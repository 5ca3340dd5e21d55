package ready

import (
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
)

// keptOffAfter is how long a node may have the startup taint until DaemonSets that the taint keeps off
// it are named: one that needs none of them is complete by then, unless its driver takes long.
const keptOffAfter = 5 * time.Minute

// maxAdvice leaves room in an Event for what the node lacks.
const maxAdvice = 700

// maxKeptOff is how many DaemonSets a sentence names.
const maxKeptOff = 4

// Stuck is a node that keeps its startup taint for longer than it should. Nothing but what it lacks
// takes the taint away: without it, Cluster Autoscaler would remember a node without GPUs.
type Stuck struct {
	// Node and its Group, which is empty for a node of none.
	Node, Group string
	// Reason is ReasonDaemonSetsKeptOff or ReasonNodeIncomplete.
	Reason  string
	Message string
}

// stuckReason is that of a node with the startup taint.
func (c candidate) stuckReason() string {
	if len(c.KeptOff) > 0 {
		return v1alpha1.ReasonDaemonSetsKeptOff
	}
	return v1alpha1.ReasonNodeIncomplete
}

// advice says what to do about a node that lacks something.
func (c candidate) advice() string {
	advice := "see the Events of the node, and the pods that publish its devices"
	if len(c.KeptOff) > 0 {
		advice = excerpt.Of(keptOff(c.KeptOff), maxAdvice)
	}
	if c.Closed() {
		advice += "; the node keeps the taint " + v1alpha1.TaintStartup + " until it is complete"
	}
	return advice
}

// keptOff names the DaemonSets, and says how to let the first of them in.
func keptOff(sets []*appsv1.DaemonSet) string {
	var names []string
	for _, set := range sets[:min(len(sets), maxKeptOff)] {
		names = append(names, set.Namespace+"/"+set.Name)
	}
	if more := len(sets) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("DaemonSets that do not tolerate the startup taint have no pod on it: %s. If it needs one of them, as for its driver or network, let that tolerate the taint: %s",
		strings.Join(names, ", "), remedy(sets[0]))
}

// remedy lets a DaemonSet tolerate the taint, or its owner, which would undo a patch.
func remedy(set *appsv1.DaemonSet) string {
	toleration := fmt.Sprintf(`{"key":%q,"operator":"Exists"}`, v1alpha1.TaintStartup)
	if owner := metav1.GetControllerOf(set); owner != nil {
		return fmt.Sprintf("add the toleration %s to %s %s, which owns %s", toleration, owner.Kind, owner.Name, set.Name)
	}
	path, value := "/spec/template/spec/tolerations/-", toleration
	if len(set.Spec.Template.Spec.Tolerations) == 0 {
		path, value = "/spec/template/spec/tolerations", "["+toleration+"]"
	}
	return fmt.Sprintf(`kubectl -n %s patch daemonset %s --type=json -p '[{"op":"add","path":%q,"value":%s}]'`, set.Namespace, set.Name, path, value)
}
