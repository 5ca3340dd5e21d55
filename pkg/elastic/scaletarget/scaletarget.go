// Package scaletarget reads objects with a scale subresource, whatever their kind. It finds the pods
// that one replica consists of, and says why an object cannot be scaled. It reads no pods and writes
// nothing.
package scaletarget

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Name identifies an object.
type Name struct {
	// Kind is as users write it: in any case, singular or plural.
	Kind, Group     string
	Namespace, Name string
}

// String is Kind.group/name, without the namespace.
func (n Name) String() string { return n.Kind + "." + n.Group + "/" + n.Name }

// Target is an object that can be scaled. It is shared: do not modify it.
type Target struct {
	Kind schema.GroupVersionKind
	UID  types.UID
	// Replicas is the desired number.
	Replicas int32
	// Selector selects one pod per replica.
	Selector labels.Selector
	// Members are the pods of one replica, the one that Selector selects first. Empty if the object has no
	// pod template.
	Members []Member
	// Gang finds the pods of a replica; nil if a replica is one pod.
	Gang *Gang

	version string
}

// Member is a number of equal pods.
type Member struct {
	Template corev1.PodTemplateSpec
	Count    int
}

// Gang describes replicas of several pods.
type Gang struct {
	// Pods selects all pods. The value of Label identifies the replica.
	Pods  labels.Selector
	Label string
}

// read builds a target from an object and its scale.
func read(object, scale *unstructured.Unstructured) (*Target, error) {
	t := &Target{Kind: object.GroupVersionKind(), UID: object.GetUID(), version: scale.GetResourceVersion()}
	if err := t.scale(scale); err != nil {
		return nil, err
	}
	if t.Kind.GroupKind() == leaderWorkerSet {
		return t, t.leaderWorkerSet(object)
	}
	template, found, err := podTemplate(object, "spec", "template")
	if found && err == nil {
		t.Members = []Member{{Template: template, Count: 1}}
	}
	return t, err
}

// scale reads an autoscaling/v1 Scale.
func (t *Target) scale(scale *unstructured.Unstructured) error {
	replicas, _, err := unstructured.NestedInt64(scale.Object, "spec", "replicas")
	if err != nil || replicas < 0 || replicas > maxReplicas {
		return fmt.Errorf("its scale has no number of replicas from 0 to %d: see the scale subresource in its CustomResourceDefinition", maxReplicas)
	}
	text, _, err := unstructured.NestedString(scale.Object, "status", "selector")
	if err != nil || text == "" {
		return errors.New("its scale has no selector: wait until its controller has written one, or name the workload that it manages")
	}
	if t.Selector, err = labels.Parse(text); err != nil {
		return fmt.Errorf("the selector of its scale cannot be read: %w", err)
	}
	if t.Selector.Empty() {
		return errors.New("the selector of its scale selects all pods: name the workload that it manages")
	}
	t.Replicas = int32(replicas)
	return nil
}

// maxReplicas and maxSize bound the work of counting.
const (
	maxReplicas = 1_000_000
	maxSize     = 10_000
)

// podTemplate returns the object's pod template, if it has one.
func podTemplate(object *unstructured.Unstructured, path ...string) (template corev1.PodTemplateSpec, found bool, err error) {
	content, found, err := unstructured.NestedMap(object.Object, path...)
	if err != nil || !found {
		return template, false, nil // something else is called so
	}
	if containers, _, _ := unstructured.NestedSlice(content, "spec", "containers"); len(containers) == 0 {
		return template, false, nil
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &template); err != nil {
		return template, false, fmt.Errorf("its pod template cannot be read: %w", err)
	}
	return template, true, nil
}
