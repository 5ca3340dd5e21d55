package pair

import (
	"fmt"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Decide returns the actions that are due now. It is pure.
func Decide(s Situation) Result {
	s.index = newIndex(&s)
	result := Result{Status: map[string]GroupStatus{}}
	result.Actions, result.Again = delays(&s)
	result.Actions = append(result.Actions, strays(s.View)...)
	demand := map[string][]scaleout.NewNode{}
	for _, growth := range s.Decision.Growth {
		demand[growth.Group] = append(demand[growth.Group], growth.Nodes...)
	}
	unused := unusedBy(&s)
	for i := range s.View.GroupStates {
		group := &s.View.GroupStates[i]
		name := group.Object.Name
		out := modeFor(group).decide(&s, group, demand[name])
		result.Actions = append(result.Actions, out.actions...)
		out.status.UnusedBy = unused[name]
		result.Status[name] = out.status
		result.Again = sooner(result.Again, out.again)
	}
	result.Actions = append(result.Actions, protections(&s)...)
	result.Actions = append(result.Actions, strayMarks(&s)...)
	return result
}

// strays deletes placeholders whose group is not of pairing placeholder.
func strays(v *view.View) []Action {
	ours := map[string]bool{}
	for i := range v.GroupStates {
		ours[v.GroupStates[i].Object.Name] = modeFor(&v.GroupStates[i]) == placeholders{}
	}
	var deletes []Action
	for _, pod := range v.Placeholders {
		if name := pod.Labels[v1alpha1.LabelNodeGroup]; !ours[name] && pod.DeletionTimestamp == nil {
			deletes = append(deletes, deletePlaceholder{Pod: pod, Why: fmt.Sprintf("group %s does not grow by placeholders", name)})
		}
	}
	return deletes
}
