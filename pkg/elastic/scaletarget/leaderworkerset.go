package scaletarget

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
)

// leaderWorkerSet has replicas of a leader and size-1 workers. Its scale selects the leaders only.
// Labels: kubernetes-sigs/lws, api/leaderworkerset/v1/leaderworkerset_types.go.
var leaderWorkerSet = schema.GroupKind{Group: "leaderworkerset.x-k8s.io", Kind: "LeaderWorkerSet"}

const (
	labelSetName    = "leaderworkerset.sigs.k8s.io/name"
	labelGroupIndex = "leaderworkerset.sigs.k8s.io/group-index"
)

// leaderWorkerSet reads the pods of a group. A leader without a template of its own uses the workers'.
func (t *Target) leaderWorkerSet(object *unstructured.Unstructured) error {
	size, found, err := unstructured.NestedInt64(object.Object, "spec", "leaderWorkerTemplate", "size")
	if err == nil && !found {
		size = 1
	}
	if err != nil || size < 1 || size > maxSize {
		return fmt.Errorf("the size of its groups is not a number from 1 to %d: correct spec.leaderWorkerTemplate.size", maxSize)
	}
	worker, found, err := podTemplate(object, "spec", "leaderWorkerTemplate", "workerTemplate")
	if err != nil {
		return err
	}
	if !found {
		return errors.New("it has no spec.leaderWorkerTemplate.workerTemplate with containers: give it one")
	}
	leader, found, err := podTemplate(object, "spec", "leaderWorkerTemplate", "leaderTemplate")
	if err != nil {
		return err
	}
	if !found {
		leader = worker
	}
	t.Members = []Member{{Template: leader, Count: 1}}
	if size == 1 {
		return nil
	}
	t.Members = append(t.Members, Member{Template: worker, Count: int(size) - 1})
	named, err := labels.NewRequirement(labelSetName, selection.Equals, []string{object.GetName()})
	if err != nil {
		return fmt.Errorf("its pods cannot be selected by label %s: %w", labelSetName, err)
	}
	t.Gang = &Gang{Pods: labels.NewSelector().Add(*named), Label: labelGroupIndex}
	return nil
}
