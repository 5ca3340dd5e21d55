package view

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// Discovered is a node group that a provider lists, such as EKS.
type Discovered struct {
	// Nodegroup is its name at the provider.
	Nodegroup string
	// Group is the GPUNodeGroup for it; nil: it has no GPUs, or they are unknown.
	Group *v1alpha1.GPUNodeGroup
	// Err is why they are unknown.
	Err error
}

// notInNames matches what EKS allows in names and Kubernetes does not.
var notInNames = regexp.MustCompile(`[^a-z0-9-]`)

// DiscoveredName is the name of the GPUNodeGroup for a discovered managed node group: the node group's own name if an
// object can have it, or else that name with a hash, so that two node groups never share an object. It depends only on
// the node group: if two controllers discover it, the API server refuses the second object.
func DiscoveredName(nodegroup string) string {
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(nodegroup), "-"), "-")
	if name == nodegroup {
		return name
	}
	sum := sha256.Sum256([]byte(nodegroup))
	return strings.TrimPrefix(name+"-"+hex.EncodeToString(sum[:4]), "-")
}
