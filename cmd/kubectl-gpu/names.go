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

// mostNames are read of what could be meant.
const mostNames = 500

// namesIn are the names of objects, those of a namespace if there is one.
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

// missing says that an object does not exist which the user has named, and what could be meant. Who may
// not list is told what to do instead.
func missing(ctx context.Context, reader client.Reader, kind schema.GroupVersionKind, called string, name client.ObjectKey, instead string) error {
	text := fmt.Sprintf("there is no %s %s in namespace %s", called, name.Name, name.Namespace)
	names, err := namesIn(ctx, reader, kind, name.Namespace)
	if meant := alike(name.Name, names); err == nil && len(meant) > 0 {
		return fmt.Errorf("%s; did you mean %s, or another namespace (-n)?", text, strings.Join(meant, ", "))
	}
	return fmt.Errorf("%s: %s, or give another namespace with -n", text, instead)
}

// alike are the names that are most like one that does not exist, the most alike first, five at most.
func alike(name string, all []string) []string {
	// Cobra knows which of its commands are alike, and so which of these names.
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
