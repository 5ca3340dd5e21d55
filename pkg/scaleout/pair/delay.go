package pair

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// maxDelays is how many pods are written in a pass. Admission has annotated most before: these are of
// before their budget, or of after its end.
const maxDelays = 50

// delays keep pods under a budget from Cluster Autoscaler, which knows of no budget and would add nodes
// for them as soon as a group has had one. Cluster Autoscaler ignores a pod that is younger than the
// annotation says (core/static_autoscaler.go, filterOutYoungPods); the scheduler does not. Pods that fit
// on a new node of no group are left to it: it may have groups that nobody told us of.
func delays(s *Situation) []Action {
	var actions []Action
	for _, pod := range s.View.Pending {
		under := slices.ContainsFunc(s.View.Budgets, func(b scaleout.Budget) bool { return b.Binds(pod.Namespace) })
		on := under && !s.index.strangers[pod.UID]
		if on == view.Delayed(pod) {
			continue
		}
		actions = append(actions, delay{Pod: client.ObjectKeyFromObject(pod), UID: pod.UID, On: on})
		if len(actions) == maxDelays {
			break
		}
	}
	return actions
}

// delay annotates a pod for Cluster Autoscaler, or takes the annotation away.
type delay struct {
	unpromised
	Pod types.NamespacedName
	UID types.UID
	On  bool
}

func (a delay) String() string {
	if a.On {
		return fmt.Sprintf("keep pod %s from Cluster Autoscaler: it is under a budget", a.Pod)
	}
	return fmt.Sprintf("leave pod %s to Cluster Autoscaler again", a.Pod)
}

func (delay) group() string { return "" }

// do writes by pods/status, which takes annotations, too: the controller may not write pods otherwise.
func (a delay) do(ctx context.Context, e *Executor, _ *Result) error {
	annotations := map[string]any{v1alpha1.AnnotationScaleUpDelay: nil}
	if a.On {
		annotations[v1alpha1.AnnotationScaleUpDelay] = v1alpha1.ScaleUpDelay
	}
	// A pod of the same name that came after this one is another.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": a.UID, "annotations": annotations}})
	if err != nil {
		return fmt.Errorf("encode annotation %s of pod %s: %w", v1alpha1.AnnotationScaleUpDelay, a.Pod, err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: a.Pod.Namespace, Name: a.Pod.Name}}
	err = e.Client.Status().Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
