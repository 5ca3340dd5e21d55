package view

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
)

// Mark is how far the end of an empty node is. It is in the node's annotation, so that whoever
// leads next goes on.
type Mark struct {
	Step Step
	// Since is when the step began.
	Since time.Time
}

// Step is one of the constants, or empty.
type Step string

// Steps of a node's end.
const (
	// StepEmpty: nothing runs on the node.
	StepEmpty Step = "empty"
	// StepCordoned: no pods are placed there any more, and it is seen whether one was on its way.
	StepCordoned Step = "cordoned"
	// StepEnding: AWS is asked, or was, to terminate the machine.
	StepEnding Step = "ending"
)

// MarkOf is the mark of a node. One that cannot be read is none.
func MarkOf(node *corev1.Node) Mark {
	step, since, _ := strings.Cut(node.Annotations[v1alpha1.AnnotationScaleIn], " ")
	at, err := time.Parse(time.RFC3339, since)
	switch Step(step) {
	case StepEmpty, StepCordoned, StepEnding:
		if err == nil {
			return Mark{Step: Step(step), Since: at}
		}
	}
	return Mark{}
}

// String is the annotation's value.
func (m Mark) String() string { return string(m.Step) + " " + m.Since.UTC().Format(time.RFC3339) }

// Cordons reports that the node is cordoned by the mark.
func (m Mark) Cordons() bool { return m.Step == StepCordoned || m.Step == StepEnding }

// planned is the node as it is planned with, nil where it is none. One that is cordoned only until
// it is ended has room: if a pod is to go there, it is not ended.
func planned(node *corev1.Node) *corev1.Node {
	mark := MarkOf(node)
	if node.DeletionTimestamp != nil || mark.Step == StepEnding {
		return nil
	}
	if mark.Step != StepCordoned {
		return node
	}
	open := node.DeepCopy()
	open.Spec.Unschedulable = false
	open.Spec.Taints = slices.DeleteFunc(open.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == corev1.TaintNodeUnschedulable })
	return open
}

// Leaving tells a node that is being deleted, or that Cluster Autoscaler or we are about to end.
func Leaving(node *corev1.Node) bool {
	return node.DeletionTimestamp != nil || MarkOf(node).Step == StepEnding ||
		slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == template.TaintToBeDeleted })
}

// Staying counts the nodes that are not being ended.
func (g *Group) Staying() int {
	n := 0
	for i := range g.Nodes {
		if !Leaving(g.Nodes[i].Object) {
			n++
		}
	}
	return n
}

// SizeWith counts the nodes that there will be: those that stay, those that come, and those that
// Mica or Cluster Autoscaler is about to end, as long as AWS still wants them: it will want as many less then. A
// Node that is being deleted has no machine any more.
func (g *Group) SizeWith(coming, desired int) int {
	size, leaving := g.Staying()+coming, 0
	for i := range g.Nodes {
		if node := g.Nodes[i].Object; node.DeletionTimestamp == nil && Leaving(node) {
			leaving++
		}
	}
	return size + max(0, min(leaving, desired-size))
}
