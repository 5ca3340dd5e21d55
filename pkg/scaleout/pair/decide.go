package pair

import (
	"fmt"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Decide says what is to be done now. It changes nothing of the situation.
func Decide(s Situation) Result {
	s.index = newIndex(&s)
	result := Result{Status: map[string]GroupStatus{}}
	result.Actions, result.Again = delays(&s)
	result.Actions = append(result.Actions, strays(s.View)...)
	demand := demanded(s.Decision)
	unused := unusedBy(&s)
	for i := range s.View.GroupStates {
		group := &s.View.GroupStates[i]
		out := modeFor(group).decide(&s, group, demand[group.Object.Name])
		result.Actions = append(result.Actions, out.actions...)
		out.status.UnusedBy = unused[group.Object.Name]
		result.Status[group.Object.Name] = out.status
		result.Again = sooner(result.Again, out.again)
	}
	result.Actions = append(result.Actions, warmPools(&s, result)...)
	result.Actions = append(result.Actions, protections(&s)...)
	result.Actions = append(result.Actions, strayMarks(&s)...)
	return result
}

// modeFor is the group's mode. One whose nodes may be another group's is left alone, as is one
// that is being deleted.
func modeFor(group *view.Group) mode {
	if group.Refused != "" || group.Object.DeletionTimestamp != nil {
		return observe{}
	}
	return modeOf(group.Object.Spec.Pairing)
}

// demanded are the nodes that the plan asks for, by group.
func demanded(d scaleout.Decision) map[string][]scaleout.NewNode {
	demand := map[string][]scaleout.NewNode{}
	for _, growth := range d.Growth {
		demand[growth.Group] = append(demand[growth.Group], growth.Nodes...)
	}
	return demand
}

// strays deletes placeholders of groups that do not grow by them: any more, or at all.
func strays(v *view.View) []Action {
	ours := map[string]bool{}
	for i := range v.GroupStates {
		ours[v.GroupStates[i].Object.Name] = modeFor(&v.GroupStates[i]) == placeholders{}
	}
	var deletes []Action
	for _, pod := range v.Placeholders {
		if name := pod.Labels[v1alpha1.LabelNodeGroup]; !ours[name] && pod.DeletionTimestamp == nil {
			deletes = append(deletes, attempt{pod: pod}.delete(fmt.Sprintf("group %s does not grow by placeholders", name)))
		}
	}
	return deletes
}
