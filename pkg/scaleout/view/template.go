package view

import (
	"crypto/sha256"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
)

// chooseTemplate sets the template of the group: from a node that it has, or else from one that it had, or else from
// the catalogue. It sets what each node lacks and how it differs.
func (r *reading) chooseTemplate(group *Group) {
	group.Predicted = r.predict(*group).template
	learned := r.learned(group.Object)
	before := group.Predicted
	if counts(learned, group) {
		before = learned
	}
	for i := range group.Nodes {
		state := &group.Nodes[i]
		r.judge(group, before, state)
		if state.Complete() {
			state.Difference = r.difference(state, before, group.Predicted)
		}
	}
	group.Template = before
	live := r.live(group.Nodes, learned)
	if live == nil {
		return
	}
	group.Template = live
	for i := range group.Nodes {
		r.judge(group, live, &group.Nodes[i])
	}
}

// judge sets what the node lacks. A learned template may promise pools of drivers that were uninstalled since: then no
// new node would ever be complete, and nothing would be learned again. So a node that has the startup taint after its
// provision timeout needs only the pools of Mica's driver, unless it has incomplete pools of other drivers.
func (r *reading) judge(group *Group, t *template.Template, state *NodeState) {
	if state.Withheld != "" {
		state.Missing = []string{state.Withheld}
		return
	}
	state.Missing = r.compare(t, state).missing
	deadline := state.Object.CreationTimestamp.Add(group.Object.ProvisionTimeout())
	if t == nil || len(state.Missing) == 0 || !HasStartupTaint(state.Object) || r.Now.Before(deadline) {
		return
	}
	if len(template.Missing(r.Driver, t.Of(r.Driver), state.Object, state.Slices)) == 0 {
		state.Missing, state.Waived = nil, state.Missing
	}
}

// difference compares with the former template, and then with the catalogue: a node always agrees with the template
// that was learned from it, but the catalogue may still be wrong.
func (r *reading) difference(state *NodeState, before, predicted *template.Template) string {
	if before == nil {
		return ""
	}
	if difference := r.compare(before, state).difference; difference != "" || predicted == nil || predicted == before || predicted.Policy != before.Policy {
		return difference
	}
	return r.compare(predicted, state).difference
}

// counts reports whether the learned template still describes a new node: the same policy applies, as far as that can
// be predicted, and the instance type is the same.
func counts(learned *template.Template, group *Group) bool {
	if learned == nil {
		return false
	}
	if want, had := group.Object.Spec.InstanceType, learned.Node.Labels[corev1.LabelInstanceTypeStable]; want != "" && had != "" && want != had {
		return false
	}
	return group.Predicted == nil || group.Predicted.Policy == learned.Policy
}

// live is the template learned from complete nodes: from the most frequent kind, or among equals from the kind of the
// newest node.
func (r *reading) live(states []NodeState, learned *template.Template) *template.Template {
	type class struct {
		template *template.Template
		nodes    int
		source   *NodeState
	}
	var classes []class
	// The newest are first, so that a class's first node is its newest.
	for _, state := range slices.Backward(states) {
		if !state.Complete() {
			continue
		}
		i := slices.IndexFunc(classes, func(c class) bool { return r.compare(c.template, &state).same() })
		if i < 0 {
			classes = append(classes, class{template: r.learn(&state, learned), source: &state})
			i = len(classes) - 1
		}
		classes[i].nodes++
		// Learn from the same node as before if possible, so that a new node does not change the group's status.
		if learned != nil && state.Object.Name == learned.LearnedFrom {
			classes[i].source = &state
		}
	}
	if len(classes) == 0 {
		return nil
	}
	most := classes[0]
	for _, c := range classes[1:] {
		if c.nodes > most.nodes {
			most = c
		}
	}
	return r.learn(most.source, learned)
}

// learn learns from a node. If the result equals the former template, it keeps the former date.
func (r *reading) learn(state *NodeState, before *template.Template) *template.Template {
	key := learnKey{node: state.version, policies: r.policyKey, before: before}
	return r.Memo.learned.get(key, func() *template.Template {
		learned := template.Learn(state.Object, state.Slices, r.policies, r.StartupTaints, r.Now)
		learned.Source = v1alpha1.SourceLiveNode
		if sameTemplate(learned, before) {
			learned.LearnedAt = before.LearnedAt
		}
		return learned
	})
}

// sameTemplate ignores the dates.
func sameTemplate(a, b *template.Template) bool {
	return a != nil && b != nil && a.LearnedFrom == b.LearnedFrom && a.Policy == b.Policy &&
		apiequality.Semantic.DeepEqual(a.Node, b.Node) && apiequality.Semantic.DeepEqual(a.Slices, b.Slices)
}

// learned is the template in the group's status; nil: there is none, or it is invalid, and will be learned from the
// next node.
func (r *reading) learned(object *v1alpha1.GPUNodeGroup) *template.Template {
	status := object.Status.Template
	if status == nil || len(status.Data) == 0 {
		return nil
	}
	return r.Memo.decoded.get(sha256.Sum256(status.Data), func() *template.Template {
		learned, err := template.Decode(status.Data)
		if err != nil || learned == nil || learned.Node == nil {
			return nil
		}
		learned.Source = v1alpha1.SourceLearned
		return learned
	})
}

func (r *reading) predict(group Group) prediction {
	key := predictionKey{group: versionOfSpec(group.Object), instanceType: group.InstanceType, policies: r.policyKey}
	return r.Memo.predictions.get(key, func() prediction {
		predicted, err := template.Predict(r.Driver, group.Object, group.InstanceType, r.policies, r.StartupTaints)
		if err != nil {
			return prediction{err: err}
		}
		return prediction{template: predicted}
	})
}

func (r *reading) compare(t *template.Template, state *NodeState) comparison {
	key := compareKey{template: t, node: state.version}
	return r.Memo.comparisons.get(key, func() comparison {
		missing := template.Missing(r.Driver, t, state.Object, state.Slices)
		if t == nil || len(missing) > 0 {
			return comparison{missing: missing}
		}
		return comparison{difference: template.Difference(r.Driver, t, state.Object, state.Slices)}
	})
}
