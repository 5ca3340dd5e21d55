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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/ready"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Reasons of Events on groups, besides those of conditions.
const (
	reasonScaleUpBegun = "ScaleUpBegun"
	actionScaleUp      = "ScaleUp"
	actionObserve      = "Observe"
)

// groupReports is what is to be told of each group. It reads those that the actions have written: who
// writes their statuses later, from that version, undoes nothing that another pass has recorded since.
func (l *Loop) groupReports(ctx context.Context, s pair.Situation, result pair.Result) ([]groupReport, error) {
	demand := map[string]int{}
	for _, growth := range s.Decision.Growth {
		demand[growth.Group] += len(growth.Nodes)
	}
	taken := takenPools(s.View)
	var reports []groupReport
	var problems []error
	for i, group := range s.View.GroupStates {
		name := group.Object.Name
		before, err := l.current(ctx, group.Object, result.Written[name])
		if apierrors.IsNotFound(err) {
			continue // it was deleted meanwhile
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
		report.said, _ = s.Autoscaler.Of(group.Object, s.Now)
		for _, stuck := range l.gate.Stuck() {
			if stuck.Group == name {
				report.stuck = append(report.stuck, stuck)
			}
		}
		reports = append(reports, report)
	}
	return reports, errors.Join(problems...)
}

// writeGroups writes the status of each group, where it has changed, and Events about what has
// changed. A status that somebody else has written meanwhile is left for the next pass.
func (l *Loop) writeGroups(ctx context.Context, reports []groupReport) error {
	var problems []error
	for _, report := range reports {
		problems = append(problems, l.writeGroup(ctx, report))
	}
	return errors.Join(problems...)
}

// told is what of a condition makes an Event when it changes. Of Ready and InBackoff, the
// message has what changes all the time, such as when a backoff that goes on ends.
func told(c *metav1.Condition) string {
	if c == nil {
		return ""
	}
	text := string(c.Status) + c.Reason
	if c.Type == v1alpha1.ConditionTemplateValid {
		text += c.Message
	}
	return text
}

// failures are those in a row.
func failures(backoff *v1alpha1.Backoff) int32 {
	if backoff == nil {
		return 0
	}
	return backoff.Failures
}

// current is the group as it is after the actions.
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

// writeGroup writes the status from the version of before. The actions may have told a part of it
// already since the pass began.
func (l *Loop) writeGroup(ctx context.Context, report groupReport) error {
	planned, before := report.group.Object, report.before
	status, failure := report.status(&before.Status)
	if apiequality.Semantic.DeepEqual(before.Status, *status) {
		if before != planned {
			l.tell(planned, status)
		}
		return failure
	}
	after := before.DeepCopy()
	after.Status = *status
	err := l.Client.Status().Update(ctx, after)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		l.Enqueue()
		return failure
	}
	if err != nil {
		return errors.Join(failure, fmt.Errorf("write the status of GPUNodeGroup %s: %w", before.Name, err))
	}
	l.tell(planned, status)
	return failure
}

// tell writes Events about what has changed in a group's status.
func (l *Loop) tell(before *v1alpha1.GPUNodeGroup, status *v1alpha1.GPUNodeGroupStatus) {
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
		if is == nil || is.Status != kind.bad || told(was) == told(is) && !again {
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
		"Asked for %s by pairing %s.", count(begun, "more node"), before.Spec.Pairing)
}

// begunNodes are in flight now and were not before. The entry of an update at EKS takes the
// place of its intent: what tells that they are one is their target, and since when they are.
func begunNodes(before, after []v1alpha1.InFlight) int {
	nodes := 0
	for _, entry := range after {
		known := slices.ContainsFunc(before, func(b v1alpha1.InFlight) bool {
			// A placeholder is as old as the API server says, which this clock did not know
			// when it was created.
			return b.ID == entry.ID && b.ID != pair.IntentID ||
				entry.Target != 0 && b.Target == entry.Target && b.Since.Equal(&entry.Since)
		})
		if !known {
			nodes += int(entry.Nodes)
		}
	}
	return nodes
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// groupReport is what a group's status is made from.
type groupReport struct {
	// before is the group after the pass's actions.
	before  *v1alpha1.GPUNodeGroup
	group   view.Group
	unknown string
	demand  int
	unused  int
	pairing pair.GroupStatus
	now     time.Time
	// outdated is a sentence about CustomResourceDefinitions that are older than the controller; empty: they are not.
	outdated string
	// said is what Cluster Autoscaler says of the group; zero where it says nothing.
	said autoscaler.Group
	// stuck are the group's nodes that do not get through the gate.
	stuck []ready.Stuck
}

// status is the new one. The error is of a template that cannot be kept; the rest counts.
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
		// What was learned counts again when the group has its nodes for itself.
		status.InstanceType, status.Template = before.InstanceType, before.Template.DeepCopy()
		return status, nil
	}
	var err error
	status.Template, err = r.template(before.Template)
	return status, err
}

// observer writes Events of what was seen, for who knows of no other kind.
type observer struct{ events.EventRecorder }

// Event implements ready.Recorder.
func (o observer) Event(object runtime.Object, kind, reason, message string) {
	o.Eventf(object, nil, kind, reason, actionObserve, "%s", message)
}
