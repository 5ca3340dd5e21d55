//go:build e2e

package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden files from what the cluster publishes now")

// TestSlicesEqualGoldenFile compares what the plugin publishes for a simulated machine with
// a reviewed file. The names that a cluster chooses are replaced.
func TestSlicesEqualGoldenFile(t *testing.T) {
	t.Parallel()
	machine := simulatedMachine(t)
	if machine == "" {
		skip(t, "the node is not known to be a simulated one (MICA_E2E_SIM_NODE is not set), and what a real one publishes is in no golden file")
	}
	path := filepath.Join("testdata", "slices-"+machine+".golden.yaml")
	if *update {
		must(t, os.WriteFile(path, []byte(normalisedSlices(t)), 0o644), "write the golden file")
		return
	}
	want, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		skip(t, "there is no golden file for this machine (write %s with -update)", path)
	}
	must(t, err, "read the golden file")
	// The plugin writes one slice after the other.
	eventually(t, startTimeout, "the slices are those of "+path, func(context.Context) error {
		if now := normalisedSlices(t); now != string(want) {
			return fmt.Errorf("they are:\n%s", now)
		}
		return nil
	})
}

// normalisedSlices are those of the plugin on the node.
func normalisedSlices(t *testing.T) string {
	t.Helper()
	list, err := under.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{
		FieldSelector: resourcev1.ResourceSliceSelectorDriver + "=" + under.driver,
	})
	must(t, err, "list ResourceSlices")
	slices.SortFunc(list.Items, func(a, b resourcev1.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	var text strings.Builder
	for _, slice := range list.Items {
		if _, tests := slice.Labels[testLabel]; tests || slice.Spec.Pool.Name != under.node {
			continue
		}
		expectOwner(t, slice)
		content, err := yaml.Marshal(normalised(slice))
		must(t, err, "encode slice %s", slice.Name)
		text.WriteString("---\n" + string(content))
	}
	return text.String()
}

func normalised(slice resourcev1.ResourceSlice) resourcev1.ResourceSlice {
	spec := *slice.Spec.DeepCopy()
	spec.NodeName = ptr.To("NODE")
	spec.Pool.Name = "NODE"
	spec.Pool.Generation = 1
	return resourcev1.ResourceSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: resourcev1.SchemeGroupVersion.String(), Kind: "ResourceSlice"},
		Spec:     spec,
	}
}

// expectOwner wants the Node as the slice's owner: a slice must go when its node does.
func expectOwner(t *testing.T, slice resourcev1.ResourceSlice) {
	t.Helper()
	if !slices.ContainsFunc(slice.OwnerReferences, func(owner metav1.OwnerReference) bool {
		return owner.Kind == "Node" && owner.Name == under.node
	}) {
		t.Errorf("slice %s is not owned by Node %s: %v", slice.Name, under.node, slice.OwnerReferences)
	}
}
