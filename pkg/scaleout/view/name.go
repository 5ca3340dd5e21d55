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
	// Nodegroup is its name there.
	Nodegroup string
	// Group is how it would be declared; nil: it has no GPUs, or they are unknown.
	Group *v1alpha1.GPUNodeGroup
	// Err is why that is not known.
	Err error
}

// notInNames is what EKS allows in names and Kubernetes does not.
var notInNames = regexp.MustCompile(`[^a-z0-9-]`)

// DiscoveredName is that of the GPUNodeGroup of a managed node group that no user has declared:
// the node group's own where that can be an object's, and else one made of it, so that two
// node groups never share an object. Whoever discovers a node group gives it the same name:
// the second is refused by the API server.
func DiscoveredName(nodegroup string) string {
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(nodegroup), "-"), "-")
	if name == nodegroup {
		return name
	}
	sum := sha256.Sum256([]byte(nodegroup))
	return strings.TrimPrefix(name+"-"+hex.EncodeToString(sum[:4]), "-")
}
