package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/ready"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Reasons and actions of Events on groups.
const (
	reasonScaleUpBegun = "ScaleUpBegun"
	actionScaleUp      = "ScaleUp"
	actionObserve      = "Observe"
)

// groupReports are the reports on all groups. It reads the groups that the actions have written, so that the status is written
// from that version later, and undoes nothing of a later pass.
func (l *Loop) groupReports(ctx context.Context, s pair.Situation, result pair.Result) ([]groupReport, error) {
	demand := map[string]int{}
	for _, growth := range s.Decision.Growth {
		demand[growth.Group] += len(growth.Nodes)
	}
	taken := pair.TakenBy(s.View.Claims)
	var reports []groupReport
	var problems []error
	for i, group := range s.View.GroupStates {
		name := group.Object.Name
		before, err := l.current(ctx, group.Object, result.Written[name])
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			problems = append(problems, err)
			continue
		}
		report := groupReport{
			before:   before,
			group:    group,
			unknown:  s.View.Groups[i].Unknown,
			demand:   demand[name],
			pairing:  result.Status[name],
			now:      s.Now,
			outdated: l.Outdated(),
			unused:   unusedNodes(group, taken, s.Now),
		}
		report.autoscaler, _ = s.Autoscaler.Of(group.Object, s.Now)
		for _, stuck := range l.gate.Stuck() {
			if stuck.Group == name {
				report.stuck = append(report.stuck, stuck)
			}
		}
		reports = append(reports, report)
	}
	return reports, errors.Join(problems...)
}

// writeGroups writes the statuses of groups that have changed, with Events.
func (l *Loop) writeGroups(ctx context.Context, reports []groupReport) error {
	var problems []error
	for _, report := range reports {
		problems = append(problems, l.writeGroup(ctx, report))
	}
	return errors.Join(problems...)
}

// eventOf is the part of a condition whose change makes an Event. Messages of Ready and InBackoff change all the time.
func eventOf(c *metav1.Condition) string {
	if c == nil {
		return ""
	}
	text := string(c.Status) + c.Reason
	if c.Type == v1alpha1.ConditionTemplateValid {
		text += c.Message
	}
	return text
}

// failures counts failures in a row.
func failures(backoff *v1alpha1.Backoff) int32 {
	if backoff == nil {
		return 0
	}
	return backoff.Failures
}

// current is the group after the actions.
func (l *Loop) current(ctx context.Context, object *v1alpha1.GPUNodeGroup, written bool) (*v1alpha1.GPUNodeGroup, error) {
	if !written {
		return object, nil
	}
	var fresh v1alpha1.GPUNodeGroup
	if err := l.Client.Get(ctx, client.ObjectKeyFromObject(object), &fresh); err != nil {
		return nil, fmt.Errorf("read GPUNodeGroup %s after a scale-up: %w", object.Name, err)
	}
	return &fresh, nil
}

// writeGroup writes the status from the version of before. The actions may have written a part of it.
func (l *Loop) writeGroup(ctx context.Context, report groupReport) error {
	planned, before := report.group.Object, report.before
	status, failure := report.status(&before.Status)
	if apiequality.Semantic.DeepEqual(before.Status, *status) {
		if before != planned {
			l.recordEvents(planned, status)
		}
		return failure
	}
	after := before.DeepCopy()
	after.Status = *status
	written, err := l.updateStatus(ctx, "GPUNodeGroup", after)
	if written {
		l.recordEvents(planned, status)
	}
	return errors.Join(failure, err)
}

// recordEvents writes Events about changes of a group's status.
func (l *Loop) recordEvents(before *v1alpha1.GPUNodeGroup, status *v1alpha1.GPUNodeGroupStatus) {
	for _, kind := range []struct {
		condition string
		bad       metav1.ConditionStatus
	}{
		{v1alpha1.ConditionReady, metav1.ConditionFalse},
		{v1alpha1.ConditionTemplateValid, metav1.ConditionFalse},
		{v1alpha1.ConditionInBackoff, metav1.ConditionTrue},
		{v1alpha1.ConditionOutlastsAutoscaler, metav1.ConditionTrue},
		{v1alpha1.ConditionNodesStuck, metav1.ConditionTrue},
		{v1alpha1.ConditionScaleIn, metav1.ConditionFalse},
	} {
		was := meta.FindStatusCondition(before.Status.Conditions, kind.condition)
		is := meta.FindStatusCondition(status.Conditions, kind.condition)
		again := kind.condition == v1alpha1.ConditionInBackoff && failures(status.Backoff) > failures(before.Status.Backoff)
		if is == nil || is.Status != kind.bad || eventOf(was) == eventOf(is) && !again {
			continue
		}
		l.Recorder.Eventf(before, nil, corev1.EventTypeWarning, is.Reason, actionObserve, "%s", is.Message)
		if kind.condition == v1alpha1.ConditionInBackoff {
			scaleUps.WithLabelValues(before.Name, string(before.Spec.Pairing), "failed").Inc()
		}
	}
	begun := begunNodes(before.Status.InFlight, status.InFlight)
	if begun == 0 {
		return
	}
	scaleUps.WithLabelValues(before.Name, string(before.Spec.Pairing), "begun").Add(float64(begun))
	l.Recorder.Eventf(before, nil, corev1.EventTypeNormal, reasonScaleUpBegun, actionScaleUp,
		"Asked for %s by pairing %s.", moreNodes(begun), before.Spec.Pairing)
}

// begunNodes counts the nodes of new entries in flight. An update at EKS replaces its intent; both have the same target and
// time.
func begunNodes(before, after []v1alpha1.InFlight) int {
	nodes := 0
	for _, entry := range after {
		known := slices.ContainsFunc(before, func(b v1alpha1.InFlight) bool {
			// The time of a placeholder differs: it is the API server's.
			return b.ID == entry.ID && b.ID != pair.IntentID ||
				entry.Target != 0 && b.Target == entry.Target && b.Since.Equal(&entry.Since)
		})
		if !known {
			nodes += int(entry.Nodes)
		}
	}
	return nodes
}

func moreNodes(n int) string {
	if n == 1 {
		return "1 more node"
	}
	return fmt.Sprintf("%d more nodes", n)
}

// groupReport is the input of a group's status.
type groupReport struct {
	// before is the group after the pass's actions.
	before  *v1alpha1.GPUNodeGroup
	group   view.Group
	unknown string
	demand  int
	unused  int
	pairing pair.GroupStatus
	now     time.Time
	// outdated is a sentence if the CustomResourceDefinitions are older than the controller.
	outdated string
	// autoscaler is Cluster Autoscaler's status of the group, or zero.
	autoscaler autoscaler.Group
	// stuck are the group's nodes that keep the startup taint for too long.
	stuck []ready.Stuck
}

// status is the new status. An error is about the template only.
func (r groupReport) status(before *v1alpha1.GPUNodeGroupStatus) (*v1alpha1.GPUNodeGroupStatus, error) {
	status := &v1alpha1.GPUNodeGroupStatus{
		ObservedGeneration: r.group.Object.Generation,
		InstanceType:       r.group.InstanceType,
		Nodes:              int32(len(r.group.Nodes)),
		Unused:             int32(r.unused),
		UnusedBy:           r.pairing.UnusedBy,
		Demand:             int32(r.demand),
		InFlight:           r.pairing.InFlight[:min(len(r.pairing.InFlight), v1alpha1.MaxInFlight)],
		ProviderMax:        r.group.ProviderMax,
		ProviderSize:       r.group.ProviderSize,
		Autoscaler:         r.group.Autoscaler,
		Backoff:            r.pairing.Backoff,
	}
	for _, state := range r.group.Nodes {
		if r.group.Starting(state, r.now) {
			status.Starting++
		}
	}
	for _, condition := range before.Conditions {
		status.Conditions = append(status.Conditions, *condition.DeepCopy())
	}
	conditions := []metav1.Condition{r.ready(), r.templateValid(before.Conditions), r.inBackoff()}
	if r.pairing.ScaleIn.After == 0 {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionScaleIn)
	}
	for _, condition := range []*metav1.Condition{r.outlastsAutoscaler(before.Conditions), r.nodesStuck(before.Conditions), r.scaleIn(before.Conditions)} {
		if condition != nil {
			conditions = append(conditions, *condition)
		}
	}
	for _, condition := range conditions {
		condition.ObservedGeneration = status.ObservedGeneration
		condition.LastTransitionTime = metav1.NewTime(r.now.Truncate(time.Second))
		condition.Message = excerpt.Of(condition.Message, maxConditionMessage)
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	if r.group.Refused != "" {
		// The template counts again when no other group has the nodes.
		status.InstanceType, status.Template = before.InstanceType, before.Template.DeepCopy()
		return status, nil
	}
	var err error
	status.Template, err = r.template(before.Template)
	return status, err
}
