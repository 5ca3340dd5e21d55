// Package template predicts what a new node will publish: from a node that its group has or had, or from the catalogue
// of instance types and the GPUPolicy that will apply. It is pure. The code that publishes slices on nodes also makes
// its slices. It never calls a cloud.
package template

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// Template is a node that does not exist yet. The names of the node and its pools are invented.
type Template struct {
	// Node has labels, taints without those of startup, and allocatable resources.
	Node *corev1.Node
	// Slices are complete pools of all drivers.
	Slices []*resourceapi.ResourceSlice
	Source v1alpha1.TemplateSource
	// LearnedFrom is the name of the node; empty for a predicted template.
	LearnedFrom string
	LearnedAt   time.Time
	// Policy is the GPUPolicy that applied, as NAME/GENERATION; empty: none.
	Policy string

	invented []resourceapi.QualifiedName
}

// Of is the template with the devices of one driver only.
func (t *Template) Of(driver string) *Template {
	own := *t
	own.Slices = slices.DeleteFunc(slices.Clone(t.Slices), func(s *resourceapi.ResourceSlice) bool { return s.Spec.Driver != driver })
	return &own
}

// Invented are attributes of Mica's devices that are unknown: their values here are invented, or the template lacks
// them. What a selector says about them cannot be predicted. Attributes in the driver's domain have no prefix. Invented
// values are equal on the same devices as real ones: a GPU and its partitions have one UUID.
func (t *Template) Invented() []resourceapi.QualifiedName { return slices.Clone(t.invented) }
