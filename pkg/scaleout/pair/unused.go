package pair

import (
	"slices"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// unusedBy are the workloads that left nodes unused, by the group whose status records them.
func unusedBy(s *Situation) map[string][]v1alpha1.UnusedBy {
	left := leftUnused{}
	uses := usesSince(s)
	for i := range s.View.GroupStates {
		object := s.View.GroupStates[i].Object
		for j := range object.Status.UnusedBy {
			entry := &object.Status.UnusedBy[j]
			if view.Remembered(entry, s.Now) && !uses(entry) {
				left[object.Name] = append(left[object.Name], *entry)
			}
		}
	}
	for i := range s.Decision.Kinds {
		kind := &s.Decision.Kinds[i]
		for _, decided := range kind.Pods {
			pod := s.index.pending[decided.Pod]
			if decided.Outcome == scaleout.Unused && pod != nil && view.NewlyUnused(pod, s.Now) {
				left.add(s, kind, decided)
			}
		}
	}
	return left
}

// leftUnused are the entries by group.
type leftUnused map[string][]v1alpha1.UnusedBy

// add records a pod that did not use a node. Other pods of the workload, while it waits, count for the same node.
func (l leftUnused) add(s *Situation, kind *scaleout.Kind, decided scaleout.PodDecision) {
	pod := s.index.pending[decided.Pod]
	if before := l.entry(view.WorkloadOf(pod)); before != nil {
		if !s.Now.Before(before.Until.Time) {
			*before = view.UnusedAgain(before, pod, s.Now)
		}
		return
	}
	group := s.growsFor(kind)
	if group == "" {
		return // no group grows for it
	}
	entries := append(l[group], view.UnusedAgain(nil, pod, s.Now))
	if len(entries) > v1alpha1.MaxUnusedBy {
		first := slices.MinFunc(entries, func(a, b v1alpha1.UnusedBy) int { return a.Until.Compare(b.Until.Time) })
		entries = slices.DeleteFunc(entries, func(e v1alpha1.UnusedBy) bool { return view.WorkloadIn(&e) == view.WorkloadIn(&first) })
	}
	l[group] = entries
}

// entry is a workload's, or nil.
func (l leftUnused) entry(of view.Workload) *v1alpha1.UnusedBy {
	for _, entries := range l {
		for i := range entries {
			if view.WorkloadIn(&entries[i]) == of {
				return &entries[i]
			}
		}
	}
	return nil
}

// growsFor is the first group that can grow for a kind. Empty: none.
func (s *Situation) growsFor(kind *scaleout.Kind) string {
	for i, fit := range kind.Groups {
		if fit.Miss == nil && fit.PerNode > 0 && modeFor(&s.View.GroupStates[i]) != (observe{}) {
			return fit.Group
		}
	}
	return ""
}

// usesSince returns a function that reports whether a pod of an entry's workload was bound since.
func usesSince(s *Situation) func(*v1alpha1.UnusedBy) bool {
	namespaces := map[string]bool{}
	for i := range s.View.GroupStates {
		for _, entry := range s.View.GroupStates[i].Object.Status.UnusedBy {
			namespaces[entry.Namespace] = true
		}
	}
	last := map[view.Workload]int64{}
	for i := range s.View.Nodes {
		for _, pod := range s.View.Nodes[i].Pods {
			if namespaces[pod.Namespace] {
				workload := view.WorkloadOf(pod)
				last[workload] = max(last[workload], boundSince(pod).Unix())
			}
		}
	}
	return func(entry *v1alpha1.UnusedBy) bool { return last[view.WorkloadIn(entry)] >= entry.Since.Unix() }
}
