package ready

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// operation is part of a JSON patch (RFC 6902).
type operation struct {
	Op    string        `json:"op"`
	Path  string        `json:"path"`
	Value *corev1.Taint `json:"value,omitempty"`
}

// removal removes the startup taints if they are still at the same index, from the last to the first.
func removal(taints []corev1.Taint) ([]byte, error) {
	var patch []operation
	for i := len(taints) - 1; i >= 0; i-- {
		if !isStartup(taints[i]) {
			continue
		}
		path := fmt.Sprintf("/spec/taints/%d", i)
		patch = append(patch, operation{Op: "test", Path: path, Value: &taints[i]}, operation{Op: "remove", Path: path})
	}
	return json.Marshal(patch)
}
