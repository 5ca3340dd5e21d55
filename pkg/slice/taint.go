package slice

import (
	"cmp"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/health"
)

// TaintWithdrawn is on devices that the node's policy no longer offers, but that claims still
// hold.
const TaintWithdrawn = "mica.gpu/withdrawn"

// TaintInUse is on devices of claims that something else uses as well, such as a container
// with the GPU of a device plugin.
const TaintInUse = "mica.gpu/in-use"

// InUse is the taint of a device that no further claim shares.
func InUse() resourceapi.DeviceTaint {
	return resourceapi.DeviceTaint{Key: TaintInUse, Effect: resourceapi.DeviceTaintEffectNoSchedule}
}

// TaintCordoned is on cordoned devices, by DeviceTaintRules of kubectl gpu cordon.
const TaintCordoned = "mica.gpu/cordoned"

// Withdrawn is the taint of a device that no further claim gets.
func Withdrawn() resourceapi.DeviceTaint {
	return resourceapi.DeviceTaint{Key: TaintWithdrawn, Effect: resourceapi.DeviceTaintEffectNoSchedule}
}

// TaintFabric is on the devices of a GPU on which CUDA does not start because the fabric
// manager is not done with it, and on those of one with a fault of the fabric. Its value is the
// GPU's gpu.FabricState, or that of the fault.
const TaintFabric = "mica.gpu/fabric"

// FabricPending is the taint of a device that gets claims when the fabric manager is done.
func FabricPending(state gpu.FabricState) resourceapi.DeviceTaint {
	return resourceapi.DeviceTaint{Key: TaintFabric, Value: string(state), Effect: resourceapi.DeviceTaintEffectNoSchedule}
}

// sickKeys are the keys of taints by condition. Those of NVIDIA's driver are NVIDIA's.
var sickKeys = map[health.Condition]string{
	health.XID:          DefaultDriver + "/xid",
	health.Lost:         DefaultDriver + "/gpu-lost",
	health.Recovery:     "mica.gpu/recovery-action",
	health.Memory:       "mica.gpu/memory",
	health.Fabric:       TaintFabric,
	health.Unresponsive: "mica.gpu/unresponsive",
}

// IsFault reports whether a published taint is for a fault of its GPU.
func IsFault(taint resourceapi.DeviceTaint) bool {
	waits := taint.Key == TaintFabric && (taint.Value == string(gpu.FabricNotStarted) || taint.Value == string(gpu.FabricInProgress))
	return !waits && slices.Contains(slices.Collect(maps.Values(sickKeys)), taint.Key)
}

// Meaning returns why a device has a taint with that key, and the remedy. Both are empty for a
// taint of another driver.
func Meaning(key string) (why, remedy string) {
	switch key {
	case TaintWithdrawn:
		return "the node's GPUPolicy does not offer it any more", "the withdrawn devices go when the claims that have them end"
	case TaintInUse:
		return "something else uses it, such as a container that has it from a device plugin", "the node's Event GPUsInUse says what: end these pods"
	case TaintCordoned:
		return "it is cordoned", "kubectl get devicetaintrules -l mica.gpu/cordon -o yaml says who and why, and kubectl gpu uncordon ends it"
	case TaintFabric:
		return "the GPU's NVLink fabric is not ready, or has a fault", "the node's Events NVLinkFabricPending and GPUFault say what to do, such as to start the fabric manager"
	}
	for _, sick := range sickKeys {
		if key == sick {
			return "the GPU has a fault", "the node's Events GPUFault say what to do, such as to reset the GPU: it gets claims again when the fault is over"
		}
	}
	return "", ""
}

// FaultEffects are the effects of faults on claims, by condition. A condition that is not named
// keeps further claims away.
type FaultEffects map[health.Condition]resourceapi.DeviceTaintEffect

// Sick is the taint of a device with a fault. A fault with which work can go on has no effect.
func (e FaultEffects) Sick(fault health.Fault) resourceapi.DeviceTaint {
	taint := resourceapi.DeviceTaint{
		Key: sickKeys[fault.Condition], Value: fault.Value, Effect: cmp.Or(e[fault.Condition], resourceapi.DeviceTaintEffectNoSchedule),
	}
	if fault.Severity <= health.Degraded {
		taint.Effect = resourceapi.DeviceTaintEffectNone
	}
	if !fault.Since.IsZero() {
		taint.TimeAdded = &metav1.Time{Time: fault.Since}
	}
	return taint
}

// Taints are those of a node's devices, by the device's name. A nil map has none. A taint
// without TimeAdded gets it from the API server, and keeps it while its device stays in its
// slice; one that must outlive a wipe of the slices, because a toleration counts from it,
// comes with its own.
type Taints map[string][]resourceapi.DeviceTaint

// Add taints a device. It replaces a taint of the same key and effect.
func (t Taints) Add(device string, taint resourceapi.DeviceTaint) {
	others := slices.DeleteFunc(slices.Clone(t[device]), func(other resourceapi.DeviceTaint) bool {
		return other.Key == taint.Key && other.Effect == taint.Effect
	})
	t[device] = append(others, taint)
}

// AddGPU taints all shapes of a GPU.
func (t Taints) AddGPU(uuid string, shapes []gpu.Shape, taint resourceapi.DeviceTaint) {
	for _, shape := range shapes {
		if shape.Physical().UUID == uuid {
			t.Add(shape.Name(), taint)
		}
	}
}

// of are the taints of a device, sorted.
func (t Taints) of(device string) []resourceapi.DeviceTaint {
	return slices.SortedFunc(slices.Values(t[device]), func(a, b resourceapi.DeviceTaint) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Effect, b.Effect))
	})
}
