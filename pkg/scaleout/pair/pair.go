// Package pair makes node groups grow as the planner demands: beside Cluster Autoscaler by placeholder pods, or by calls
// of EKS and EC2 Auto Scaling. All state is in the API server, so a restarted controller continues. Decide is pure;
// Executor executes its actions.
package pair

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Situation is the input of Decide.
type Situation struct {
	Now      time.Time
	View     *view.View
	Decision scaleout.Decision
	// Triggers are Cluster Autoscaler's last Events about pods.
	Triggers    map[types.UID]Trigger
	Autoscaler  autoscaler.Status
	Placeholder PlaceholderOptions
	// FailClosed keeps pods under a budget from Cluster Autoscaler for ever, also while no controller runs.
	FailClosed bool

	// index is set by Decide.
	index *index
}

// PlaceholderOptions configure placeholders.
type PlaceholderOptions struct {
	Namespace string
	// Image must do nothing when its argument is pause. The controller's own does.
	Image string
	// PriorityClass must be below that of users' pods, and at least -10: below, Cluster Autoscaler ignores pods. Empty: none.
	PriorityClass string
	// Grace is how long the controller waits for Cluster Autoscaler's Event about a pod.
	Grace time.Duration
}

// DefaultGrace is three scans of Cluster Autoscaler.
const DefaultGrace = 30 * time.Second

// Trigger is an Event of Cluster Autoscaler about a pod.
type Trigger struct {
	// Pod is checked besides the UID, which a user can forge: an Event is about an object of its own namespace.
	Pod types.NamespacedName
	// Triggered distinguishes TriggeredScaleUp from NotTriggerScaleUp.
	Triggered bool
	At        time.Time
	Message   string
}

// Result is what Decide returns and Executor updates.
type Result struct {
	Actions []Action
	Status  map[string]GroupStatus
	// Again is when to decide again without a change. Zero: never.
	Again time.Time
	// Written has the groups whose status Executor.Do has written since it was read.
	Written map[string]bool
}

// GroupStatus is pairing's part of a group's status.
type GroupStatus struct {
	InFlight []v1alpha1.InFlight
	Backoff  *v1alpha1.Backoff
	// NotReady is the reason why Ready is false, with a sentence. Empty: pairing has no problem.
	NotReady, Message string
	ScaleIn           ScaleIn
	// UnusedBy are the workloads that left nodes unused.
	UnusedBy []v1alpha1.UnusedBy
}

// ScaleIn is the state of a group's scale-in.
type ScaleIn struct {
	// After is how long a node must be empty before it is ended. Zero: nodes stay.
	After time.Duration
	// Ending reports whether a node is being ended.
	Ending bool
	// Problem is why a node cannot be ended. Empty: no problem.
	Problem string
}

// Nodegroups calls EKS, and EC2 Auto Scaling behind it.
type Nodegroups interface {
	view.EKS
	// SetDesired sets the desired size to the intent's target. It returns the update's ID, or WantedID if there is no update
	// to follow. The ID is empty if EKS is busy with another update. Repeating an intent (by target and since) has no effect.
	SetDesired(ctx context.Context, group *v1alpha1.GPUNodeGroup, intent v1alpha1.InFlight) (string, error)
	// End terminates an EC2 instance and lowers the group's size by one. Repeating it has no effect. The error is ErrRefused
	// if AWS began nothing and will refuse again, and ErrNotInGroup if the group lacks the instance.
	End(ctx context.Context, group *v1alpha1.GPUNodeGroup, instance string) error
}

// ErrRefused is an error of Nodegroups: AWS refused the call.
var ErrRefused = errors.New("refused")

// ErrNotInGroup is an ErrRefused: the instance has ended or was detached.
var ErrNotInGroup = fmt.Errorf("%w: not in the group", ErrRefused)
