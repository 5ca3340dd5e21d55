package offer

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// ReasonRepairRefused is the reason of the Event on a node with an invalid annotation about a repair.
const ReasonRepairRefused = "RepairRefused"

// repairs are a node's annotations about repaired GPUs, by UUID.
type repairs map[string]repair

type repair struct {
	value string
	// at is zero if the value is invalid.
	at time.Time
}

// repairsOf lists a node's annotations about repairs.
func repairsOf(node *corev1.Node) map[string]string {
	annotations := maps.Clone(node.Annotations)
	maps.DeleteFunc(annotations, func(key, _ string) bool { return !strings.HasPrefix(key, v1alpha1.AnnotationRepaired) })
	return annotations
}

// readRepairs returns when GPUs were repaired. A time in the future would end errors to come: it is
// refused when first read, and stays refused after it has passed.
func (o *Offer) readRepairs(ctx context.Context, node *corev1.Node, now time.Time) map[string]time.Time {
	read, times := repairs{}, map[string]time.Time{}
	for key, value := range repairsOf(node) {
		uuid := strings.TrimPrefix(key, v1alpha1.AnnotationRepaired)
		known, is := o.repairs[uuid]
		if !is || known.value != value {
			known = repair{value: value}
			if at, err := time.Parse(time.RFC3339, value); err != nil {
				o.refuseRepair(ctx, key, value, "it is no time as in RFC 3339")
			} else if at.After(now) {
				o.refuseRepair(ctx, key, value, "it is later than the node's clock, which has "+now.UTC().Format(time.RFC3339))
			} else {
				known.at = at
			}
		}
		read[uuid] = known
		if !known.at.IsZero() {
			times[uuid] = known.at
		}
	}
	o.repairs = read
	return times
}

func (o *Offer) refuseRepair(ctx context.Context, key, value, why string) {
	klog.FromContext(ctx).Info("Ignoring an annotation of the node about a repaired GPU; set it to the present time", "annotation", key, "value", value, "reason", why)
	o.Events.WarnNode(ReasonRepairRefused, fmt.Sprintf("the annotation %s=%s does not count: %s; set it to the present time", key, value, why))
}
