//go:build e2e

package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
)

// TestPredictionEqualsWhatIsPublished holds what the controller expects of a p5.48xlarge to
// what the plugin has published on one, but for UUIDs, names and versions. It runs alone:
// others change what the node offers.
func TestPredictionEqualsWhatIsPublished(t *testing.T) {
	const h100s, product = 8, "NVIDIA H100 80GB HBM3"
	if len(under.devices) != h100s || under.devices[0].text("productName") != product {
		skip(t, "the node is no p5.48xlarge")
	}
	s := newScenario(t, len(under.devices))
	group := &v1alpha1.GPUNodeGroup{Spec: v1alpha1.GPUNodeGroupSpec{
		Provider: v1alpha1.NodeGroupProvider{EKS: &v1alpha1.EKSNodegroup{Nodegroup: "p5"}}, InstanceType: "p5.48xlarge",
	}}
	predicted, err := template.Predict(s.driver, group, "", s.listPolicies())
	must(t, err, "predict a p5.48xlarge")
	list, err := s.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{FieldSelector: resourcev1.ResourceSliceSelectorNodeName + "=" + s.node})
	must(t, err, "list the node's slices")
	var published []*resourcev1.ResourceSlice
	for i := range list.Items {
		if list.Items[i].Spec.Driver == s.driver {
			published = append(published, &list.Items[i])
		}
	}
	without := predicted.Invented()
	if difference := cmp.Diff(comparable(published, without), comparable(predicted.Slices, without)); difference != "" {
		t.Errorf("published (-) and predicted (+) differ:\n%s", difference)
	}
}

// comparable is what slices say in the order of their names, without what is of one node, and
// the attributes that no prediction has.
func comparable(all []*resourcev1.ResourceSlice, without []resourcev1.QualifiedName) []resourcev1.ResourceSliceSpec {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b *resourcev1.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	var specs []resourcev1.ResourceSliceSpec
	for _, slice := range all {
		spec := slice.DeepCopy().Spec
		spec.NodeName, spec.Pool.Name, spec.Pool.Generation = nil, "", 0
		for _, device := range spec.Devices {
			for _, name := range without {
				delete(device.Attributes, name)
			}
		}
		specs = append(specs, spec)
	}
	return specs
}

func (s *scenario) listPolicies() []*v1alpha1.GPUPolicy {
	s.Helper()
	list, err := s.policies(s).List(s.Context(), metav1.ListOptions{})
	must(s, err, "list GPUPolicies")
	var policies []*v1alpha1.GPUPolicy
	for _, item := range list.Items {
		policy := &v1alpha1.GPUPolicy{}
		must(s, runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, policy), "read GPUPolicy %s", item.GetName())
		policies = append(policies, policy)
	}
	return policies
}

// TestControllerTellsItsMetrics reads them as Prometheus would.
func TestControllerTellsItsMetrics(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t)
	eventually(t, startTimeout, "a controller tells how long plans take", func(ctx context.Context) error {
		return s.expectMetrics(ctx, "mica_scaleout_plan_duration_seconds_count", "mica_scaleout_pending_pods{outcome=\"Blocked\"}", "go_goroutines")
	})
}
