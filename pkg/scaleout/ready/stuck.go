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

const (
	// keptOffAfter is when DaemonSets that the startup taint keeps off a node are reported. Most nodes are complete by then.
	keptOffAfter = 5 * time.Minute
	// maxAdvice leaves room in an Event for the missing parts.
	maxAdvice = 700
	// maxKeptOff bounds the DaemonSets in a sentence.
	maxKeptOff = 4
)

// Stuck is a node that keeps its startup taint for too long. The taint stays: without it, Cluster Autoscaler would remember
// the group's nodes as nodes without GPUs.
type Stuck struct {
	// Group may be empty.
	Group string
	// Reason is ReasonDaemonSetsKeptOff or ReasonNodeIncomplete.
	Reason  string
	Message string
}

func (c candidate) stuck(advice string) Stuck {
	reason := v1alpha1.ReasonNodeIncomplete
	if len(c.KeptOff) > 0 {
		reason = v1alpha1.ReasonDaemonSetsKeptOff
	}
	return Stuck{Group: c.Group, Reason: reason, Message: fmt.Sprintf("Node %s lacks %s: %s.", c.Node.Name, strings.Join(c.Lacks, "; "), advice)}
}

// advice is how to complete a node.
func (c candidate) advice() string {
	advice := "see the Events of the node, and the pods that publish its devices"
	if len(c.KeptOff) > 0 {
		advice = excerpt.Of(keptOff(c.KeptOff), maxAdvice)
	}
	if c.closed() {
		advice += "; the node keeps the taint " + v1alpha1.TaintStartup + " until it is complete"
	}
	return advice
}

// keptOff names the DaemonSets, with the remedy for the first.
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

// remedy adds the toleration to a DaemonSet, or to its owner, which would undo a patch of the DaemonSet.
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
