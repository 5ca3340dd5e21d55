package migrate

import "slices"

// Clean makes an object as it is in a cluster into the manifest that somebody would apply. It changes
// the object.
func Clean(object map[string]any) {
	delete(object, "status")
	metadata, _ := object["metadata"].(map[string]any)
	for _, key := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink", "ownerReferences"} {
		delete(metadata, key)
	}
	annotations, _ := metadata["annotations"].(map[string]any)
	for _, key := range []string{"kubectl.kubernetes.io/last-applied-configuration", "deployment.kubernetes.io/revision", "deprecated.daemonset.template.generation"} {
		delete(annotations, key)
	}
	if len(annotations) == 0 {
		delete(metadata, "annotations")
	}
	removeEmpty(object, "metadata", "creationTimestamp")
}

// removeEmpty removes a field without a value of everything that is called so, at any depth: old API
// types write creationTimestamp: null into each template.
func removeEmpty(value any, of, key string) {
	switch value := value.(type) {
	case map[string]any:
		if inner, is := value[of].(map[string]any); is && inner[key] == nil {
			delete(inner, key)
		}
		for _, child := range value {
			removeEmpty(child, of, key)
		}
	case []any:
		for child := range slices.Values(value) {
			removeEmpty(child, of, key)
		}
	}
}
