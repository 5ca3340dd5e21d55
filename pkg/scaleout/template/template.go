// Package template knows what a node that does not exist yet will publish: from a node that
// its group has, from one that it had, or from the catalogue of instance types and the
// GPUPolicy that will apply. It is pure, and the slices it predicts come from the code that
// publishes them on the node. It never asks a cloud.
package template

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// Template is a node to come. Its names, and those of its pools, are made up.
type Template struct {
	// Node has labels, taints without those of startup, and allocatable resources.
	Node *corev1.Node
	// Slices are complete pools of all drivers.
	Slices []*resourceapi.ResourceSlice
	Source v1alpha1.TemplateSource
	// LearnedFrom is the node's name, of templates that are not predicted.
	LearnedFrom string
	LearnedAt   time.Time
	// Policy is the GPUPolicy that applied, as NAME/GENERATION; empty where none did.
	Policy string

	invented []resourceapi.QualifiedName
}

// Of is the template with one driver's devices only.
func (t *Template) Of(driver string) *Template {
	own := *t
	own.Slices = slices.DeleteFunc(slices.Clone(t.Slices), func(s *resourceapi.ResourceSlice) bool { return s.Spec.Driver != driver })
	return &own
}

// Invented are attributes of our driver's devices whose values here are made up, or which
// new nodes have and the template lacks, because they are unknown: what a selector says of
// them cannot be predicted. Those of our driver's domain have no prefix. That they are equal
// on two devices is right where they are made up: a GPU and its partitions have one UUID.
func (t *Template) Invented() []resourceapi.QualifiedName { return slices.Clone(t.invented) }
