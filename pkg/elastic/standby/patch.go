package standby

import (
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func stamp(now time.Time) metav1.Time { return metav1.NewTime(now.Truncate(time.Second)) }

// mergePatch changes one condition of the pod with this UID, and with this resourceVersion unless it
// is empty.
func mergePatch(uid types.UID, version string, condition corev1.PodCondition) client.Patch {
	of := map[string]any{"uid": uid}
	if version != "" {
		of["resourceVersion"] = version
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": of,
		"status":   map[string]any{"conditions": []corev1.PodCondition{condition}},
	})
	if err != nil {
		return client.RawPatch(types.StrategicMergePatchType, nil) // a condition is texts
	}
	return client.RawPatch(types.StrategicMergePatchType, patch)
}
