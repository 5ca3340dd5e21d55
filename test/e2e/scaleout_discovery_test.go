//go:build e2e

package e2e

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// TestScaleOutDiscoversAndForgetsAGroup has a node of a group that nobody has declared: the controller declares it, and
// takes that back when the node goes before anything of it was learned. Where the controller was faster, the group says
// what was learned.
func TestScaleOutDiscoversAndForgetsAGroup(t *testing.T) {
	t.Parallel()
	const name = "discovered"
	s := newScaleOut(t)
	cloud := theFleet(t).cloud
	must(t, cloud.Put(t.Context(), groupOf(t, name).machines(name)), "set up group %s", name)
	t.Cleanup(func() { s.undeclare(name) })
	must(t, cloud.SetDesired(t.Context(), name, 1), "ask the cloud for a node")
	groups := s.dynamic(gpuNodeGroups)
	eventually(t, nodeTimeout, "the group is discovered", func(ctx context.Context) error {
		group, err := groups.Get(ctx, name, metav1.GetOptions{})
		if err == nil && group.GetLabels()[v1alpha1.LabelDiscovered] != "nodes" {
			err = errors.New("somebody else has declared it")
		}
		return err
	})
	must(t, cloud.SetDesired(t.Context(), name, 0), "have the cloud end the node")
	eventually(t, nodeTimeout, "the group is forgotten, or known", func(ctx context.Context) error {
		group, err := groups.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if from, _, err := unstructured.NestedString(group.Object, "status", "template", "node"); from == "" {
			return errors.Join(errors.New("it is there, and nothing was learned of it"), err)
		}
		t.Log("a node was learned from before it went")
		return nil
	})
}
