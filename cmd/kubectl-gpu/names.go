package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// mostNames bounds the names that are read for suggestions.
const mostNames = 500

// namesIn lists the names of objects, of one namespace if it is set.
func namesIn(ctx context.Context, reader client.Reader, kind schema.GroupVersionKind, namespace string) ([]string, error) {
	var list metav1.PartialObjectMetadataList
	kind.Kind += "List"
	list.SetGroupVersionKind(kind)
	if err := reader.List(ctx, &list, client.Limit(mostNames), client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	names := make([]string, len(list.Items))
	for i := range list.Items {
		names[i] = list.Items[i].Name
	}
	return names, nil
}

// missing returns an error for an object that does not exist, with similar names. If the user may not
// list names, it says what to do instead.
func missing(ctx context.Context, reader client.Reader, kind schema.GroupVersionKind, called string, name client.ObjectKey, instead string) error {
	text := fmt.Sprintf("there is no %s %s in namespace %s", called, name.Name, name.Namespace)
	names, err := namesIn(ctx, reader, kind, name.Namespace)
	if meant := alike(name.Name, names); err == nil && len(meant) > 0 {
		return fmt.Errorf("%s; did you mean %s, or another namespace (-n)?", text, strings.Join(meant, ", "))
	}
	return fmt.Errorf("%s: %s, or give another namespace with -n", text, instead)
}

// alike returns up to five names that are similar to one that does not exist, the most similar first.
func alike(name string, all []string) []string {
	// Cobra suggests commands with similar names.
	var known cobra.Command
	for _, other := range all {
		known.AddCommand(&cobra.Command{Use: other, Run: func(*cobra.Command, []string) {}})
	}
	const mistyped, most = 2, 5 // characters, names
	known.SuggestionsMinimumDistance = mistyped
	found := known.SuggestionsFor(name)
	slices.SortStableFunc(found, func(a, b string) int {
		return cmp.Compare(len(strings.TrimPrefix(a, name))-len(a), len(strings.TrimPrefix(b, name))-len(b))
	})
	return found[:min(len(found), most)]
}
