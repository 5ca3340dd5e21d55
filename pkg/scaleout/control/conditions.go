package control

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
)

func (r groupReport) ready() metav1.Condition {
	condition := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse}
	switch {
	case r.group.Refused != "":
		condition.Reason, condition.Message = v1alpha1.ReasonSameNodes, r.group.Refused
	case r.gone() != nil:
		condition.Reason, condition.Message = v1alpha1.ReasonNodegroupGone, r.gone().Message
	case r.group.Template == nil:
		condition.Reason, condition.Message = v1alpha1.ReasonUnknownTemplate, r.unknown
	case r.group.Withheld != "":
		condition.Reason, condition.Message = v1alpha1.ReasonWithheld, "The group does not grow: "+r.group.Withheld
	case r.pairing.NotReady != "":
		condition.Reason, condition.Message = r.pairing.NotReady, r.pairing.Message
	default:
		condition.Status, condition.Reason = metav1.ConditionTrue, v1alpha1.ReasonReady
		condition.Message = "The devices of a new node are known, and the group can grow."
		if r.group.Object.Spec.Pairing == v1alpha1.PairingObserve {
			condition.Message = observed(r.group.Object)
		}
	}
	if r.outdated != "" {
		condition.Message = r.outdated + " " + condition.Message
	}
	return condition
}

// observed describes an observed group, with the command that changes the pairing.
func observed(group *v1alpha1.GPUNodeGroup) string {
	text := "The devices of a new node are known, and the group is only observed: Mica asks for no node of it."
	if group.Labels[v1alpha1.LabelDiscovered] == "" {
		return text
	}
	return fmt.Sprintf(`%s It was discovered; to let it grow by Cluster Autoscaler: kubectl patch gpunodegroup %s --type=merge -p '{"spec":{"pairing":"placeholder"}}'.`, text, group.Name)
}

// gone is the condition of a group that EKS does not list any more, or nil.
func (r groupReport) gone() *metav1.Condition {
	if c := meta.FindStatusCondition(r.group.Object.Status.Conditions, v1alpha1.ConditionDiscovered); c != nil && c.Status == metav1.ConditionFalse {
		return c
	}
	return nil
}

// templateValid is False while a complete node differs from the template. Without nodes, the last condition stays if the
// template was learned.
func (r groupReport) templateValid(before []metav1.Condition) metav1.Condition {
	condition := metav1.Condition{
		Type:    v1alpha1.ConditionTemplateValid,
		Status:  metav1.ConditionUnknown,
		Reason:  v1alpha1.ReasonNotSeenYet,
		Message: "No node of the group was complete so far.",
	}
	complete := false
	for _, state := range r.group.Nodes {
		if !state.Complete() {
			continue
		}
		if state.Difference != "" {
			condition.Status, condition.Reason = metav1.ConditionFalse, v1alpha1.ReasonLiveNodeDiffers
			condition.Message = fmt.Sprintf("Node %s is not as was expected: %s. New nodes are expected to be like most of the live ones; if that is wrong, check the group's instanceType and template, its GPUPolicy, and the node's GPUs.",
				state.Object.Name, strings.TrimSuffix(state.Difference, "."))
			return condition
		}
		complete = true
	}
	switch was := meta.FindStatusCondition(before, v1alpha1.ConditionTemplateValid); {
	case complete:
		condition.Status, condition.Reason = metav1.ConditionTrue, v1alpha1.ReasonAsPredicted
		condition.Message = "The group's nodes are as was expected."
	case was != nil && r.learned():
		return *was
	case r.learned():
		condition.Status, condition.Reason = metav1.ConditionTrue, v1alpha1.ReasonAsPredicted
		condition.Message = "The template was learned from a former node of the group."
	}
	return condition
}

func (r groupReport) learned() bool {
	return r.group.Template != nil && r.group.Template.Source != v1alpha1.SourceCatalogue
}

func (r groupReport) inBackoff() metav1.Condition {
	condition := metav1.Condition{
		Type:    v1alpha1.ConditionInBackoff,
		Status:  metav1.ConditionFalse,
		Reason:  v1alpha1.ReasonNoBackoff,
		Message: "The group may grow.",
	}
	backoff := r.pairing.Backoff
	if backoff == nil || !backoff.Until.After(r.now) {
		return condition
	}
	condition.Status, condition.Reason = metav1.ConditionTrue, backoff.Reason
	condition.Message = fmt.Sprintf("The group is left alone until %s: %s", backoff.Until.UTC().Format(time.RFC3339), backoff.Message)
	return condition
}

// scaleIn reports whether empty nodes are ended. Nil: they stay. A problem stays until a node is ended.
func (r groupReport) scaleIn(before []metav1.Condition) *metav1.Condition {
	in, was := r.pairing.ScaleIn, meta.FindStatusCondition(before, v1alpha1.ConditionScaleIn)
	switch {
	case in.After == 0:
		return nil
	case in.Problem != "":
		return &metav1.Condition{Type: v1alpha1.ConditionScaleIn, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonScaleInRefused, Message: in.Problem}
	case was != nil && was.Status == metav1.ConditionFalse && !in.Ending:
		return was.DeepCopy()
	}
	return &metav1.Condition{
		Type: v1alpha1.ConditionScaleIn, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonEmptyNodesEnd,
		Message: fmt.Sprintf("A node that has been empty for %s is ended, unless it is needed for spec.min or headroom.", in.After),
	}
}

// template is the template's part of the status. Learned data, up to half a megabyte, are encoded once only.
func (r groupReport) template(before *v1alpha1.TemplateStatus) (*v1alpha1.TemplateStatus, error) {
	t := r.group.Template
	if t == nil {
		return nil, nil
	}
	status := &v1alpha1.TemplateStatus{Source: t.Source, Policy: t.Policy, Devices: t.Summary()}
	if !r.learned() {
		return status, nil
	}
	status.Node = t.LearnedFrom
	learnedAt := metav1.NewTime(t.LearnedAt.Truncate(time.Second))
	status.LearnedAt = &learnedAt
	if before != nil && len(before.Data) > 0 && before.Node == status.Node && before.Policy == status.Policy &&
		before.LearnedAt != nil && before.LearnedAt.Time.Equal(learnedAt.Time) {
		status.Data = before.Data
		return status, nil
	}
	data, err := template.Encode(t)
	if err != nil {
		return status, fmt.Errorf("keep the template of GPUNodeGroup %s, learned from node %s: %w: without its nodes, the catalogue will count", r.group.Object.Name, t.LearnedFrom, err)
	}
	status.Data = data
	return status, nil
}

// maxConditionMessage keeps messages readable. The API's limit is 32768 bytes.
const maxConditionMessage = 1024
