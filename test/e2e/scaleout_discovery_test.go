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

// TestScaleOutDiscoversAGroup has a node of an undeclared group: the controller declares it, observes it, and
// says how to let it grow.
func TestScaleOutDiscoversAGroup(t *testing.T) {
	t.Parallel()
	const name = "discovered"
	s := newScaleOut(t)
	cloud := theFleet(t).cloud
	must(t, cloud.Put(t.Context(), groupOf(t, name).machines(name)), "set up group %s", name)
	t.Cleanup(func() { s.undeclare(name) })
	must(t, cloud.SetDesired(t.Context(), name, 1), "ask the cloud for a node")
	eventually(t, nodeTimeout, "the group is discovered", func(ctx context.Context) error {
		group, err := s.dynamic(gpuNodeGroups).Get(ctx, name, metav1.GetOptions{})
		if err == nil && group.GetLabels()[v1alpha1.LabelDiscovered] != "nodes" {
			err = errors.New("another client has declared it")
		}
		return err
	})
	s.expectGroupCondition(name, v1alpha1.ConditionReady, metav1.ConditionTrue, "kubectl patch gpunodegroup "+name)
}

// TestScaleOutForgetsAGroup has a group as the controller declares those that it discovers, whose node went before
// anything was learned from it: the controller takes it back.
func TestScaleOutForgetsAGroup(t *testing.T) {
	t.Parallel()
	const name = "forgotten"
	s := newScaleOut(t)
	groups := s.dynamic(gpuNodeGroups)
	_, err := groups.Create(t.Context(), &unstructured.Unstructured{Object: fields{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "GPUNodeGroup",
		"metadata": fields{"name": name, "labels": fields{v1alpha1.LabelDiscovered: "nodes"}},
		"spec":     fields{"provider": fields{"eks": fields{"nodegroup": name}}, "pairing": placeholder},
	}}, metav1.CreateOptions{})
	must(t, err, "declare group %s", name)
	t.Cleanup(func() { _ = groups.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}) })
	eventually(t, nodeTimeout, "the group is forgotten", func(ctx context.Context) error {
		_, err := groups.Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			err = errors.New("it is there")
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}
