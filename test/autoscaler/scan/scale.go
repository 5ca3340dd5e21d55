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
)

// Reasons why a group is skipped (core/scaleup/orchestrator/skippedreasons.go).
const (
	reasonMax     = "max node group size reached"
	reasonBackoff = "in backoff after failed scale-up"
)

// option is a possible scale-up.
type option struct {
	group Group
	nodes int
	pods  []*corev1.Pod
}

// scaleUp grows one group (core/scaleup/orchestrator/orchestrator.go, ScaleUp). If none can grow, all pods get an Event;
// otherwise only those that the group helps (processors/status/eventing_scale_up_processor.go, Process).
func (s *scanner) scaleUp(ctx context.Context, w *world, pods []*corev1.Pod) ([]Event, error) {
	rejections := map[*corev1.Pod][]string{}
	var best *option
	for _, group := range s.Groups {
		candidate, err := s.consider(ctx, w, group, pods, rejections)
		if err != nil {
			return nil, err
		}
		if candidate != nil && (best == nil || candidate.better(best)) {
			best = candidate
		}
	}
	var events []Event
	if best == nil {
		for _, pod := range pods {
			events = append(events, Event{pod, NotTriggerScaleUp, "pod didn't trigger scale-up: " + aggregate(rejections[pod])})
		}
		return events, nil
	}
	target := best.group.Target + best.nodes
	s.sizes[best.group.Name] = target
	s.memory.LastScaleUp = s.Now
	s.request(best.group.Name, best.nodes)
	message := fmt.Sprintf("pod triggered scale-up: [{%s %d->%d (max: %d)}]", best.group.Name, best.group.Target, target, best.group.Max)
	for _, pod := range best.pods {
		events = append(events, Event{pod, TriggeredScaleUp, message})
	}
	return events, nil
}

// better prefers the group that helps more pods, as --expander=most-pods does (expander/mostpods/mostpods.go, BestOptions),
// and then fewer nodes. The real default, least-waste (expander/waste/waste.go), compares CPU and memory only; tests that
// depend on the choice pin their pods. The real one breaks ties at random, this one by name.
func (o *option) better(than *option) bool {
	return cmp.Or(-cmp.Compare(len(o.pods), len(than.pods)), cmp.Compare(o.nodes, than.nodes), strings.Compare(o.group.Name, than.group.Name)) < 0
}

// consider packs the pods on new nodes of a group. Nil: none fits.
func (s *scanner) consider(ctx context.Context, w *world, group Group, pods []*corev1.Pod, rejections map[*corev1.Pod][]string) (*option, error) {
	skipped := ""
	switch {
	case s.inBackoff(group.Name):
		skipped = reasonBackoff
	case group.Target >= group.Max:
		skipped = reasonMax
	}
	if skipped != "" {
		for _, pod := range pods {
			rejections[pod] = append(rejections[pod], skipped)
		}
		return nil, nil
	}
	w = w.fork() // what is tried here is not so elsewhere
	result := &option{group: group}
	var rooms []*room
	for _, pod := range pods {
		reason, err := s.pack(ctx, w, group, &rooms, pod)
		switch {
		case err != nil:
			return nil, err
		case reason == "":
			result.pods = append(result.pods, pod)
		default:
			rejections[pod] = append(rejections[pod], reason)
		}
	}
	if result.nodes = len(rooms); result.nodes == 0 {
		return nil, nil
	}
	return result, nil
}

// pack puts a pod on one of the new nodes, or on a further one within the maximum (estimator/binpacking_estimator.go,
// Estimate).
func (s *scanner) pack(ctx context.Context, w *world, group Group, rooms *[]*room, pod *corev1.Pod) (string, error) {
	last := ""
	for _, room := range *rooms {
		reason, err := w.place(ctx, room, pod)
		if reason == "" || err != nil {
			return "", err
		}
		last = reason
	}
	if group.Target+len(*rooms) >= group.Max {
		return cmp.Or(last, reasonMax), nil
	}
	fresh := s.template(group).room(w, fmt.Sprintf("template-%s-%d", group.Name, len(*rooms)))
	reason, err := w.place(ctx, fresh, pod)
	if reason == "" && err == nil {
		*rooms = append(*rooms, fresh)
	}
	return reason, err
}

// aggregate counts the groups of each reason (processors/status/eventing_scale_up_processor.go,
// ReasonsMessage).
func aggregate(reasons []string) string {
	counts := map[string]int{}
	for _, reason := range reasons {
		counts[reason]++
	}
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[reason], reason))
	}
	return strings.Join(parts, ", ")
}

// annotationScaleDownDisabled keeps a node (core/scaledown/eligibility/eligibility.go,
// ScaleDownDisabledKey).
const annotationScaleDownDisabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled"

// scaleDown returns the nodes that have been empty for long enough (core/scaledown/planner/planner.go, NodesToDelete).
// Nothing is removed in the scan of a scale-up, and for DelayAfterAdd after it.
func (s *scanner) scaleDown() []string {
	cooldown := s.Now.Equal(s.memory.LastScaleUp) || s.Now.Before(s.memory.LastScaleUp.Add(s.options.DelayAfterAdd))
	empty := map[string]bool{}
	var remove []string
	for _, group := range s.Groups {
		size := group.Target
		for _, node := range s.members[group.Name] {
			if !s.started(node, s.template(group)) || node.Annotations[annotationScaleDownDisabled] == "true" || s.wanted[node.Name] || !s.empty(node.Name) {
				continue
			}
			empty[node.Name] = true
			since, known := s.memory.Unneeded[node.Name]
			if !known {
				since = s.Now
				s.memory.Unneeded[node.Name] = since
			}
			if unneeded := cmp.Or(group.ScaleDownUnneeded, s.options.ScaleDownUnneeded); unneeded > 0 && !cooldown && s.Now.Sub(since) >= unneeded && size > group.Min {
				size--
				remove = append(remove, node.Name)
			}
		}
	}
	maps.DeleteFunc(s.memory.Unneeded, func(node string, _ time.Time) bool { return !empty[node] })
	return remove
}

// empty reports whether a node has only pods of DaemonSets and static pods
// (simulator/drainability/rules/{daemonset,mirror}).
func (s *scanner) empty(node string) bool {
	return !slices.ContainsFunc(s.Pods, func(pod *corev1.Pod) bool {
		return pod.Spec.NodeName == node && active(pod) && !ownedByNode(pod)
	})
}

func ownedByNode(pod *corev1.Pod) bool {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return true
	}
	for _, owner := range pod.OwnerReferences {
		if owner.Controller != nil && *owner.Controller && owner.Kind == "DaemonSet" {
			return true
		}
	}
	return false
}

func active(pod *corev1.Pod) bool {
	return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}
