package handover

import (
	"cmp"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
)

// Fault is a fault of a GPU in the annotation.
type Fault struct {
	// Device is a device of the GPU: the entire GPU if that is offered.
	Device string `json:"device"`
	// UUID is the GPU's, as in nvidia-smi -L.
	UUID string `json:"uuid"`
	// Taint is its key, and its value if it has one: KEY=VALUE.
	Taint string `json:"taint"`
	// Effect is the taint's: NoSchedule, NoExecute, or None if work goes on.
	Effect resourceapi.DeviceTaintEffect `json:"effect"`
	Since  *metav1.Time                  `json:"since,omitempty"`
}

// keepsAway reports whether new claims do not get the GPU.
func (f Fault) keepsAway() bool { return f.Effect != resourceapi.DeviceTaintEffectNone }

// same reports whether it is the same fault, of another device of the GPU.
func (f Fault) same(o Fault) bool {
	return f.UUID == o.UUID && f.Taint == o.Taint && f.Effect == o.Effect
}

// faultsIn are the faults of a pool's GPUs, sorted by device.
func faultsIn(pool devices.Pool) (faults []Fault) {
	for _, published := range pool.Slices {
		own := devices.OwnOf(published) // the controller keeps slices compact
		for _, device := range published.Spec.Devices {
			for _, taint := range device.Taints {
				if slice.IsFault(taint) {
					faults = append(faults, faultOf(device, taint, own))
				}
			}
		}
	}
	slices.SortFunc(faults, func(a, b Fault) int {
		// The entire GPU has a shorter name than its shares and partitions.
		return cmp.Or(cmp.Compare(a.UUID, b.UUID), cmp.Compare(a.Taint, b.Taint), cmp.Compare(a.Effect, b.Effect),
			cmp.Compare(len(a.Device), len(b.Device)), cmp.Compare(a.Device, b.Device))
	})
	faults = slices.CompactFunc(faults, Fault.same)
	slices.SortStableFunc(faults, func(a, b Fault) int { return cmp.Compare(a.Device, b.Device) })
	return faults
}

func faultOf(device resourceapi.Device, taint resourceapi.DeviceTaint, own devices.Own) Fault {
	fault := Fault{Device: device.Name, Taint: taint.Key, Effect: taint.Effect}
	if taint.Value != "" {
		fault.Taint += "=" + taint.Value
	}
	if taint.TimeAdded != nil {
		fault.Since = &metav1.Time{Time: taint.TimeAdded.UTC().Truncate(time.Second)}
	}
	for _, name := range []resourceapi.QualifiedName{gpu.AttributeParentUUID, gpu.AttributeUUID} {
		if value := own.Attribute(name, device.Attributes[name]).StringValue; value != nil {
			fault.UUID = *value
			break
		}
	}
	return fault
}
