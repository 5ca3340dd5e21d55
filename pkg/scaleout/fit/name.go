package fit

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// ClaimNames are what the owner of the pod calls its Claims, in their order. They are the
// same for all pods of a kind, whatever the claims that are made for each are called.
func (p *Pod) ClaimNames() []string {
	var names []string
	for _, claim := range p.claims {
		names = append(names, fmt.Sprintf("claim %q", claim.Name))
	}
	if claim, name := p.extendedClaim(func(corev1.ResourceName) bool { return true }); claim != nil {
		names = append(names, name)
	}
	return names
}
