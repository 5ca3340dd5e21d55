package scaletarget

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind resolves a kind as kubectl does: in any case, singular, plural or a short name. Without a group
// there may be several.
func Kind(mapper meta.RESTMapper, word, group string) (*meta.RESTMapping, error) {
	kinds, err := mapper.KindsFor(schema.GroupVersionResource{Group: group, Resource: strings.ToLower(word)})
	if err != nil && !meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("ask the cluster for the kind %s: %w", qualified(word, group), err)
	}
	var found []schema.GroupKind
	for _, kind := range kinds {
		if gk := kind.GroupKind(); (group == "" || gk.Group == group) && !slices.Contains(found, gk) {
			found = append(found, gk)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("the cluster has no kind %s: correct the name (kubectl api-resources lists all kinds), or install its CustomResourceDefinition", qualified(word, group))
	case 1:
	default:
		return nil, fmt.Errorf("%s is the name of several kinds: write one of %s", word, strings.Join(names(found), ", "))
	}
	mapping, err := mapper.RESTMapping(found[0])
	if err != nil {
		return nil, fmt.Errorf("ask the cluster for the kind %s: %w", found[0], err)
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return nil, fmt.Errorf("%s is cluster-scoped and KEDA scales namespaced workloads only: name a namespaced one", found[0])
	}
	return mapping, nil
}

func qualified(word, group string) string {
	if group == "" {
		return word
	}
	return word + "." + group
}

func names(kinds []schema.GroupKind) []string {
	all := make([]string, len(kinds))
	for i, kind := range kinds {
		all[i] = kind.String()
	}
	slices.Sort(all)
	return all
}
