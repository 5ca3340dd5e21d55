// Package pair makes node groups grow as the planner demands: beside Cluster Autoscaler by
// placeholder pods, or by calls of EKS. What it has begun is in the API server alone, so that
// a controller that is killed goes on where it was. Decide is pure; Executor does what it says.
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

// Situation is what decides.
type Situation struct {
	Now      time.Time
	View     *view.View
	Decision scaleout.Decision
	// Triggers is what Cluster Autoscaler last said of pods.
	Triggers   map[types.UID]Trigger
	Autoscaler autoscaler.Status
	// EKS has groups of pairing direct by name; one that is not there was not asked yet.
	EKS map[string]view.Nodegroup
	// Placeholder is how placeholders are made.
	Placeholder PlaceholderOptions
	// FailClosed keeps pods under a budget from Cluster Autoscaler for ever, also while no controller runs.
	FailClosed bool

	// index is made by Decide.
	index *index
}

// PlaceholderOptions say how placeholders are made.
type PlaceholderOptions struct {
	// Namespace in which they are.
	Namespace string
	// Image that does nothing when its argument is pause, such as the controller's own.
	Image string
	// PriorityClass has to be below that of all users' pods, and not below -10, from where on
	// Cluster Autoscaler ignores pods. Empty: none is named.
	PriorityClass string
	// Grace is how long Cluster Autoscaler may say nothing of a pod; zero: DefaultGrace.
	Grace time.Duration
}

// DefaultGrace is three scans of Cluster Autoscaler.
const DefaultGrace = 30 * time.Second

// Trigger is an Event of Cluster Autoscaler about a pod.
type Trigger struct {
	// Pod is the one of which the Event is: an Event can be about pods of its own namespace
	// only, and a UID alone could be anyone's.
	Pod types.NamespacedName
	// Triggered tells TriggeredScaleUp from NotTriggerScaleUp.
	Triggered bool
	At        time.Time
	Message   string
}

// Result is what becomes of the groups.
type Result struct {
	Actions []Action
	// Status has, by group, what pairing knows better than anyone: InFlight, Backoff, and the
	// conditions InBackoff and those reasons of Ready that concern pairing.
	Status map[string]GroupStatus
	// Again is when to decide again though nothing has changed; zero: never.
	Again time.Time
	// Written has the groups whose status Executor.Do has written: what was read of them
	// before is outdated.
	Written map[string]bool
}

// GroupStatus is a part of a group's status.
type GroupStatus struct {
	InFlight []v1alpha1.InFlight
	Backoff  *v1alpha1.Backoff
	// NotReady is the reason of Ready being false, with a sentence; empty: nothing of pairing is wrong.
	NotReady, Message string
	ScaleIn           ScaleIn
	// UnusedBy are the workloads that left nodes unused.
	UnusedBy []v1alpha1.UnusedBy
}

// ScaleIn is what becomes of a group's empty nodes.
type ScaleIn struct {
	// After is how long they have to be empty; zero: they stay.
	After time.Duration
	// Ending tells that one ends now.
	Ending bool
	// Problem is a sentence about one that does not; empty: nothing is wrong.
	Problem string
}

// Nodegroups is EKS, with EC2 Auto Scaling behind it.
type Nodegroups interface {
	view.EKS
	// SetDesired sets the desired size to the intent's target and gives the update's ID, or
	// WantedID where there is no update to follow.
	// The same intent, by target and since, is the same update, however often it is sent.
	// The ID is empty, without an error, where EKS has another update in progress.
	SetDesired(ctx context.Context, group *v1alpha1.GPUNodeGroup, intent v1alpha1.InFlight) (string, error)
	// SetWarmPool sets the least size of the warm pool; an empty ID is as above.
	SetWarmPool(ctx context.Context, group *v1alpha1.GPUNodeGroup, size int) (string, error)
	// End terminates an EC2 instance of the group, and lets the group's size be one less. Asked
	// for again, it changes nothing more. The error is ErrRefused where nothing was begun and
	// nothing will be the next time, and ErrNotInGroup, too, where the group has no such instance
	// (any more).
	End(ctx context.Context, group *v1alpha1.GPUNodeGroup, instance string) error
}

// ErrRefused is what errors of Nodegroups are when AWS refuses what is asked for.
var ErrRefused = errors.New("refused")

// ErrNotInGroup is the ErrRefused of an instance that has ended, or was detached.
var ErrNotInGroup = fmt.Errorf("%w: not in the group", ErrRefused)
