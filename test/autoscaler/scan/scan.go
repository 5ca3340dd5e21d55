// Package scan is one look of Cluster Autoscaler at a cluster: what it would do, and say,
// about pods that cannot be scheduled. It stands in for the real one, whose behaviour with
// claims on EKS it repeats, with its blind spots: a group that never had a node has a template
// without slices. It is pure: State and Memory in, Result out. It knows nothing of Mica.
//
// Each habit names the function that has it in the real one's source: of files below pkg in
// kubernetes-sigs/cluster-autoscaler at 33c3f97, and of files that begin with aws/ below
// cluster-autoscaler/cloudprovider in kubernetes/autoscaler at 55c37cd.
package scan

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
)

// Options are flags of Cluster Autoscaler.
type Options struct {
	// TemplateAge is how long a node has to be ready before it is its group's template; one
	// minute there (processors/nodeinfosprovider/mixed_nodeinfos_processor.go,
	// stabilizationDelay).
	TemplateAge time.Duration
	// Backoff is how long a group is left alone after a failure, doubled with each up to
	// MaxBackoff; 5 and 30 minutes there (utils/backoff/exponential_backoff.go, Backoff).
	Backoff, MaxBackoff time.Duration
	// ScaleDownUnneeded is how long a node is empty before it is removed; zero for never. There
	// it is 10 minutes (core/scaledown/unneeded/nodes.go, unremovableReason).
	ScaleDownUnneeded time.Duration
	// DelayAfterAdd is how long after a scale-up nothing is removed; 10 minutes there
	// (core/static_autoscaler.go, isScaleDownInCooldown).
	DelayAfterAdd time.Duration
	// MaxProvision and MaxStartup are how long a node may take to start, since it was asked for and
	// since it joined; both 15 minutes there, for all groups of AWS: GetAsgOptions reads no tag of them.
	MaxProvision, MaxStartup time.Duration
	// PriorityCutoff is the priority below which pods are not worth a node; -10 there
	// (core/utils/expendable.go, IsExpendablePod).
	PriorityCutoff int32
}

// State is the cluster and the cloud at one moment.
type State struct {
	Now     time.Time
	Pods    []*corev1.Pod
	Nodes   []*corev1.Node
	Claims  []*resourceapi.ResourceClaim
	Classes []*resourceapi.DeviceClass
	Slices  []*resourceapi.ResourceSlice
	Groups  []Group
}

// Group is a scaling group as the cloud tells of it.
type Group struct {
	// Name is that of the scaling group.
	Name string
	// Selector are the labels of its nodes.
	Selector map[string]string
	Min, Max int
	// Target is the size that was asked for.
	Target int
	// Labels, Taints and Allocatable are what the cloud says of a node.
	Labels      map[string]string
	Taints      []corev1.Taint
	Allocatable corev1.ResourceList
	// ScaleDownUnneeded is this group's own where it is not zero: the tag
	// k8s.io/cluster-autoscaler/node-template/autoscaling-options/scaledownunneededtime there
	// (aws/aws_manager.go, GetAsgOptions).
	ScaleDownUnneeded time.Duration
	// Failed is how many machines do not come, and Code and Message why.
	Failed        int
	Code, Message string
}

// Memory is what one scan leaves to the next. It is lost with the process.
type Memory struct {
	// Templates are of nodes that groups have or had.
	Templates map[string]*Template
	Backoffs  map[string]Backoff
	// Unneeded is since when nodes are empty.
	Unneeded map[string]time.Time
	// Requests are the scale-ups that are waited for.
	Requests map[string]Request
	// LastScaleUp is when a group was last asked to grow.
	LastScaleUp time.Time
}

// NewMemory is that of an autoscaler that has just started.
func NewMemory() Memory {
	return Memory{Templates: map[string]*Template{}, Backoffs: map[string]Backoff{}, Unneeded: map[string]time.Time{}, Requests: map[string]Request{}}
}

// Backoff is a group that is left alone since Failed.
type Backoff struct {
	Failed, Until time.Time
	Duration      time.Duration
	Code, Message string
}

// Result is what is to be done and said.
type Result struct {
	// Sizes are the sizes to ask for, by group.
	Sizes map[string]int
	// Remove are nodes to take away.
	Remove []string
	Events []Event
	Status Status
	Memory Memory
}

// Event is what a pod is told.
type Event struct {
	Pod             *corev1.Pod
	Reason, Message string
}

// Reasons of events.
const (
	NotTriggerScaleUp = "NotTriggerScaleUp"
	TriggeredScaleUp  = "TriggeredScaleUp"
)

// Scan looks once, in the order of core/static_autoscaler.go, RunOnce. The error is of the context,
// or of a device selector.
func Scan(ctx context.Context, options Options, state State, memory Memory) (Result, error) {
	s := &scanner{options: options, State: state, memory: memory.clone(), sizes: map[string]int{}, wanted: map[string]bool{}}
	s.groupNodes()
	s.learn()
	s.updateRequests()
	s.backOff()
	world := newWorld(state)
	rooms := s.rooms(world)
	pending, err := s.unschedulable(ctx, world, rooms)
	if err != nil {
		return Result{}, err
	}
	events, err := s.scaleUp(ctx, world, slices.DeleteFunc(pending, s.young))
	if err != nil {
		return Result{}, err
	}
	removed := s.scaleDown()
	return Result{Sizes: s.sizes, Remove: removed, Events: events, Status: s.status(), Memory: s.memory}, nil
}

func (m Memory) clone() Memory {
	return Memory{Templates: maps.Clone(m.Templates), Backoffs: maps.Clone(m.Backoffs), Unneeded: maps.Clone(m.Unneeded), Requests: maps.Clone(m.Requests), LastScaleUp: m.LastScaleUp}
}

// scanner is a scan on its way.
type scanner struct {
	options Options
	State
	memory Memory
	// members are the nodes of each group, the oldest first.
	members map[string][]*corev1.Node
	sizes   map[string]int
	// wanted are nodes on which there is a place for a pod that waits.
	wanted map[string]bool
}

func (s *scanner) groupNodes() {
	s.members = map[string][]*corev1.Node{}
	for _, group := range s.Groups {
		for _, node := range s.Nodes {
			if labels.SelectorFromSet(group.Selector).Matches(labels.Set(node.Labels)) {
				s.members[group.Name] = append(s.members[group.Name], node)
			}
		}
		slices.SortFunc(s.members[group.Name], func(a, b *corev1.Node) int {
			return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
		})
	}
}

// backoffReset is how long a failure is remembered: the default of
// --node-group-backoff-reset-timeout (utils/backoff/exponential_backoff.go,
// RemoveStaleBackoffData). A success does not make it forgotten.
const backoffReset = 3 * time.Hour

// backOff leaves groups alone whose machines do not come, and stops asking for these
// (clusterstate/clusterstate.go, handleInstanceCreationErrors; core/static_autoscaler.go,
// deleteCreatedNodesWithErrors). Other groups grow in the same scan.
func (s *scanner) backOff() {
	for _, group := range s.Groups {
		if group.Failed == 0 {
			continue
		}
		s.leaveAlone(group.Name, group.Code, group.Message)
		s.sizes[group.Name] = max(group.Target-group.Failed, group.Min)
		s.request(group.Name, -group.Failed)
	}
}

// leaveAlone backs off from a group, for twice as long as the last time
// (utils/backoff/exponential_backoff.go, Backoff).
func (s *scanner) leaveAlone(group, code, message string) {
	last, known := s.memory.Backoffs[group]
	duration := s.options.Backoff
	switch {
	case known && s.inBackoff(group):
		duration = last.Duration
	case known:
		duration = min(2*last.Duration, s.options.MaxBackoff)
	}
	s.memory.Backoffs[group] = Backoff{Failed: s.Now, Until: s.Now.Add(duration), Duration: duration, Code: code, Message: message}
}

func (s *scanner) inBackoff(group string) bool {
	backoff, known := s.memory.Backoffs[group]
	return known && s.Now.Before(backoff.Until)
}

// rooms are all places for pods: nodes that have started, and a new node for each that is
// waited for (clusterstate/clusterstate.go, GetUpcomingNodes;
// core/static_autoscaler.go, addUpcomingNodesToClusterSnapshot).
func (s *scanner) rooms(w *world) []*room {
	upcoming := map[string]bool{}
	var rooms []*room
	for _, group := range s.Groups {
		coming, starting := s.upcoming(group)
		for _, node := range starting {
			upcoming[node.Name] = true
		}
		for i := range coming {
			rooms = append(rooms, s.template(group).room(w, fmt.Sprintf("upcoming-%s-%d", group.Name, i)))
		}
	}
	var live []*room
	for _, node := range s.Nodes {
		if !upcoming[node.Name] {
			live = append(live, w.live(node, s.Slices, s.Pods))
		}
	}
	return append(live, rooms...)
}

// unschedulable are the pods that find no place, the most important first
// (core/podlistprocessor/filter_out_schedulable.go, filterOutSchedulableByPacking).
func (s *scanner) unschedulable(ctx context.Context, w *world, rooms []*room) ([]*corev1.Pod, error) {
	var left []*corev1.Pod
	for _, pod := range s.pending(w) {
		placed := false
		for _, room := range rooms {
			reason, err := w.place(ctx, room, pod)
			if err != nil {
				return nil, err
			}
			if placed = reason == ""; placed {
				s.wanted[room.node.Name] = true
				break
			}
		}
		if !placed {
			left = append(left, pod)
		}
	}
	return left, nil
}

func (s *scanner) pending(w *world) []*corev1.Pod {
	var pending []*corev1.Pod
	for _, pod := range s.Pods {
		if waits(pod) && corev1helpers.PodPriority(pod) >= s.options.PriorityCutoff && w.claimsExist(pod) {
			pending = append(pending, pod)
		}
	}
	slices.SortFunc(pending, func(a, b *corev1.Pod) int {
		return cmp.Or(-cmp.Compare(corev1helpers.PodPriority(a), corev1helpers.PodPriority(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return pending
}

// waits reports whether the scheduler has given up on a pod for now
// (utils/kubernetes/listers.go, ArrangePodsBySchedulability).
func waits(pod *corev1.Pod) bool {
	if pod.Spec.NodeName != "" || !pod.DeletionTimestamp.IsZero() || pod.Status.Phase != corev1.PodPending {
		return false
	}
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
	})
}

// young tells that a pod is younger than it has to be for a scale-up, by its annotation. Other than here,
// such a pod counts as any (core/static_autoscaler.go, filterOutYoungPods, after the PodListProcessor).
func (s *scanner) young(pod *corev1.Pod) bool {
	delay, err := time.ParseDuration(pod.Annotations[annotationScaleUpDelay])
	return err == nil && s.Now.Sub(pod.CreationTimestamp.Time) <= delay
}

// annotationScaleUpDelay is how old a pod is before a group grows for it (utils/annotations/annotations.go,
// PodScaleUpDelayAnnotationKey).
const annotationScaleUpDelay = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"
