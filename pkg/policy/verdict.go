package policy

import (
	"strings"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
)

// Verdict is a node's report on its policy, with the reason why it cannot apply it. Nil: no policy selects the node.
func Verdict(selected *v1alpha1.GPUPolicy, refusal error) *v1alpha1.NodePolicy {
	if selected == nil {
		return nil
	}
	report := &v1alpha1.NodePolicy{Name: selected.Name, UID: string(selected.UID), ObservedGeneration: selected.Generation}
	if refusal != nil {
		report.Message = excerpt.Of(strings.ToValidUTF8(refusal.Error(), "�"), v1alpha1.MaxMessageLength)
	}
	return report
}
