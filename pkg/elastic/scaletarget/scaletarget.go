// Package scaletarget reads what has replicas to add, whatever its kind: an object with the scale
// subresource. It knows of which pods one replica consists, and says in words why an object cannot
// be scaled. It looks at no pods, and writes nothing.
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

// Name is that of an object.
type Name struct {
	// Kind as users write it: in any case, singular or plural.
	Kind, Group     string
	Namespace, Name string
}

// String is Kind.group/name, without the namespace.
func (n Name) String() string { return n.Kind + "." + n.Group + "/" + n.Name }

// Target is an object that can be scaled. It is shared: nobody changes it.
type Target struct {
	Kind schema.GroupVersionKind
	UID  types.UID
	// Replicas are those that it is to have.
	Replicas int32
	// Selector selects the pods that are counted as replicas: of a gang, one of each.
	Selector labels.Selector
	// Members are the pods of one replica, that which Selector selects first. Empty where the object
	// does not say what its pods are made of.
	Members []Member
	// Gang tells how the pods of replicas of several are found; nil where a replica is one pod.
	Gang *Gang

	version string
}

// Member is a number of pods that are alike.
type Member struct {
	Template corev1.PodTemplateSpec
	Count    int
}

// Gang tells which pods make up replicas that serve only whole.
type Gang struct {
	// Pods selects all of them, Label is the one whose value tells replicas apart.
	Pods  labels.Selector
	Label string
}

// read makes a target of an object and its scale, as the API server gives both.
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
		return fmt.Errorf("its scale does not tell a number of replicas from 0 to %d: see its status.scale in the definition of the kind", maxReplicas)
	}
	text, _, err := unstructured.NestedString(scale.Object, "status", "selector")
	if err != nil || text == "" {
		return errors.New("its scale has no selector, so that nobody knows its pods: wait until its controller has written one, or name the workload that it manages")
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

// maxReplicas and maxSize are more than anybody has, and few enough to count with.
const (
	maxReplicas = 1_000_000
	maxSize     = 10_000
)

// podTemplate is what pods are made of, where the object has it.
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
