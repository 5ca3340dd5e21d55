package view

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
)

// Mark is the progress of removing an empty node. It is in the node's annotation, so that the next leader continues.
type Mark struct {
	Step Step
	// Since is when the step began.
	Since time.Time
}

// Step is one of the constants, or empty.
type Step string

// Steps of removing a node.
const (
	// StepEmpty: nothing runs on the node.
	StepEmpty Step = "empty"
	// StepCordoned: the node gets no more pods. The controller waits for pods that were on their way.
	StepCordoned Step = "cordoned"
	// StepEnding: the controller asks AWS to terminate the machine, or has asked.
	StepEnding Step = "ending"
)

// MarkOf is the mark of a node. It is zero if the annotation is invalid.
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

// Cordons reports whether the node is cordoned in this step.
func (m Mark) Cordons() bool { return m.Step == StepCordoned || m.Step == StepEnding }

// planned is the node for the planner; nil: the planner ignores it. A node that the controller has cordoned to remove
// it has room: if a pod needs it, it stays.
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

// Leaving reports whether a node is being deleted, or Cluster Autoscaler or Mica is about to remove it.
func Leaving(node *corev1.Node) bool {
	return node.DeletionTimestamp != nil || MarkOf(node).Step == StepEnding ||
		slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == template.TaintToBeDeleted })
}

// Staying counts the nodes that are not leaving.
func (g *Group) Staying() int {
	n := 0
	for i := range g.Nodes {
		if !Leaving(g.Nodes[i].Object) {
			n++
		}
	}
	return n
}

// SizeWith counts the nodes that stay, those that come, and those that Mica or Cluster Autoscaler is about to remove as
// long as they are part of AWS's desired size. A Node that is being deleted has no machine any more.
func (g *Group) SizeWith(coming, desired int) int {
	size, leaving := g.Staying()+coming, 0
	for i := range g.Nodes {
		if node := g.Nodes[i].Object; node.DeletionTimestamp == nil && Leaving(node) {
			leaving++
		}
	}
	return size + max(0, min(leaving, desired-size))
}
