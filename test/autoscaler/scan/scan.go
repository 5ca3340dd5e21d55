// Package scan is one scan of Cluster Autoscaler: the scale-ups, Events and removals for a state of the cluster. It behaves
// like the real one for claims on EKS, with its blind spots: the template of a group that never had a node has no slices. It
// is pure, and independent of Mica.
//
// Comments name the real one's functions: files are below pkg in kubernetes-sigs/cluster-autoscaler at 33c3f97, and files
// that begin with aws/ are below cluster-autoscaler/cloudprovider in kubernetes/autoscaler at 55c37cd.
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
	// TemplateAge is how long a node must be ready to become its group's template. Real: 1 minute
	// (processors/nodeinfosprovider/mixed_nodeinfos_processor.go, stabilizationDelay).
	TemplateAge time.Duration
	// Backoff is the first backoff of a group. It doubles with each failure up to MaxBackoff. Real: 5 and 30 minutes
	// (utils/backoff/exponential_backoff.go, Backoff).
	Backoff, MaxBackoff time.Duration
	// ScaleDownUnneeded is how long a node must be empty to be removed. Zero: never. Real: 10 minutes
	// (core/scaledown/unneeded/nodes.go, unremovableReason).
	ScaleDownUnneeded time.Duration
	// DelayAfterAdd is the time after a scale-up without removals. Real: 10 minutes (core/static_autoscaler.go,
	// isScaleDownInCooldown).
	DelayAfterAdd time.Duration
	// MaxProvision and MaxStartup are the time limits of a starting node, since the request and since it joined. Real: 15
	// minutes. On AWS they apply to all groups, because GetAsgOptions reads no tag for them.
	MaxProvision, MaxStartup time.Duration
	// PriorityCutoff is the lowest priority of a pod that gets a node. Real: -10 (core/utils/expendable.go,
	// IsExpendablePod).
	PriorityCutoff int32
}

// State is the state of the cluster and the cloud.
type State struct {
	Now     time.Time
	Pods    []*corev1.Pod
	Nodes   []*corev1.Node
	Claims  []*resourceapi.ResourceClaim
	Classes []*resourceapi.DeviceClass
	Slices  []*resourceapi.ResourceSlice
	Groups  []Group
}

// Group is a scaling group.
type Group struct {
	Name string
	// Selector are the labels of its nodes.
	Selector map[string]string
	Min, Max int
	// Target is the desired size.
	Target int
	// Labels, Taints and Allocatable are the cloud's prediction of a node.
	Labels      map[string]string
	Taints      []corev1.Taint
	Allocatable corev1.ResourceList
	// ScaleDownUnneeded overrides the option if it is not zero. It is the tag
	// k8s.io/cluster-autoscaler/node-template/autoscaling-options/scaledownunneededtime (aws/aws_manager.go, GetAsgOptions).
	ScaleDownUnneeded time.Duration
	// Failed is the number of machines that do not start, for the reason in Code and Message.
	Failed        int
	Code, Message string
}

// Memory is kept between scans, and lost with the process.
type Memory struct {
	// Templates are those of present and former nodes, by group.
	Templates map[string]*Template
	Backoffs  map[string]Backoff
	// Unneeded is the time since which nodes are empty.
	Unneeded map[string]time.Time
	// Requests are the scale-ups in progress.
	Requests map[string]Request
	// LastScaleUp is the time of the last scale-up.
	LastScaleUp time.Time
}

// NewMemory is the memory of a new process.
func NewMemory() Memory {
	return Memory{Templates: map[string]*Template{}, Backoffs: map[string]Backoff{}, Unneeded: map[string]time.Time{}, Requests: map[string]Request{}}
}

// Backoff is a group's backoff since Failed.
type Backoff struct {
	Failed, Until time.Time
	Duration      time.Duration
	Code, Message string
}

// Result is the result of a scan.
type Result struct {
	// Sizes are the new sizes, by group.
	Sizes map[string]int
	// Remove are the nodes to remove.
	Remove []string
	Events []Event
	Status Status
	Memory Memory
}

// Event is an Event on a pod.
type Event struct {
	Pod             *corev1.Pod
	Reason, Message string
}

// Reasons of events.
const (
	NotTriggerScaleUp = "NotTriggerScaleUp"
	TriggeredScaleUp  = "TriggeredScaleUp"
)

// Scan scans once, in the order of core/static_autoscaler.go, RunOnce. The error is the context's or a device selector's.
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

// scanner is a scan in progress.
type scanner struct {
	options Options
	State
	memory Memory
	// members are the nodes of each group, the oldest first.
	members map[string][]*corev1.Node
	sizes   map[string]int
	// wanted are nodes with room for a pending pod.
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

// backoffReset is how long a failure is remembered, even after a success: the default of --node-group-backoff-reset-timeout
// (utils/backoff/exponential_backoff.go, RemoveStaleBackoffData).
const backoffReset = 3 * time.Hour

// backOff backs off from groups whose machines do not start, and lowers their sizes (clusterstate/clusterstate.go,
// handleInstanceCreationErrors; core/static_autoscaler.go, deleteCreatedNodesWithErrors). Other groups can grow in the same
// scan.
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

// leaveAlone backs off from a group, for twice the last duration (utils/backoff/exponential_backoff.go, Backoff).
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

// rooms are the started nodes, and a new node for each upcoming one (clusterstate/clusterstate.go, GetUpcomingNodes;
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

// unschedulable are the pods that fit nowhere, by descending priority (core/podlistprocessor/filter_out_schedulable.go,
// filterOutSchedulableByPacking).
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

// waits reports whether the scheduler has found no node for a pod (utils/kubernetes/listers.go,
// ArrangePodsBySchedulability).
func waits(pod *corev1.Pod) bool {
	if pod.Spec.NodeName != "" || !pod.DeletionTimestamp.IsZero() || pod.Status.Phase != corev1.PodPending {
		return false
	}
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
	})
}

// young reports whether a pod is younger than its annotation demands. Such a pod takes room like others, but gets no node
// (core/static_autoscaler.go, filterOutYoungPods, after the PodListProcessor).
func (s *scanner) young(pod *corev1.Pod) bool {
	delay, err := time.ParseDuration(pod.Annotations[annotationScaleUpDelay])
	return err == nil && s.Now.Sub(pod.CreationTimestamp.Time) <= delay
}

// annotationScaleUpDelay is the age of a pod before a group grows for it (utils/annotations/annotations.go,
// PodScaleUpDelayAnnotationKey).
const annotationScaleUpDelay = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"
