package policy

import (
	"strings"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
)

// Verdict is what a node says of the policy that it is to go by, nil for none, and of why
// it cannot.
func Verdict(selected *v1alpha1.GPUPolicy, refusal error) *v1alpha1.NodePolicy {
	if selected == nil {
		return nil
	}
	said := &v1alpha1.NodePolicy{Name: selected.Name, UID: string(selected.UID), ObservedGeneration: selected.Generation}
	if refusal != nil {
		said.Message = excerpt.Of(strings.ToValidUTF8(refusal.Error(), "�"), v1alpha1.MaxMessageLength)
	}
	return said
}
