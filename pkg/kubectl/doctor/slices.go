package doctor

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/excerpt"
)

func sliceChecks() []Check {
	return []Check{{
		Name:     "pool-complete",
		Severity: Error,
		Finds:    "A pool lacks slices of its newest generation. The scheduler allocates no device of it.",
		Fix:      "kubectl get resourceslices --field-selector spec.nodeName=NODE --output custom-columns=NAME:.metadata.name,DRIVER:.spec.driver,GENERATION:.spec.pool.generation,OF:.spec.pool.resourceSliceCount",
		needs:    []Kind{KindSlices},
		find:     poolComplete,
	}, {
		Name:     "slices-left-behind",
		Severity: Warning,
		Finds:    "A slice belongs to a node that does not exist, or to an old generation. If the node returns, its devices can be allocated without a driver.",
		Fix:      "kubectl delete resourceslice SLICE",
		needs:    []Kind{KindNodes, KindSlices},
		find:     slicesLeftBehind,
	}, {
		Name:     "foreign-partitions",
		Severity: Info,
		Finds:    "A GPU has MIG partitions that Mica did not create. Mica never destroys them, and does not offer their space in other shapes.",
		Fix:      "If they are not needed, on NODE: nvidia-smi mig --destroy-compute-instance && nvidia-smi mig --destroy-gpu-instance",
		needs:    []Kind{KindSlices},
		find:     foreignPartitions,
	}, {
		Name:     "driver-version",
		Severity: Warning,
		Finds:    "The NVIDIA driver is older than R565. It does not report recovery actions, so Mica judges GPU health by XIDs alone.",
		Fix:      "Upgrade the NVIDIA driver of NODE to R565 or newer: see docs on the GPU Operator, Upgrading the driver.",
		needs:    []Kind{KindSlices},
		find:     driverVersion,
	}}
}

func inPool(p Pool, format string, args ...any) Finding {
	return Finding{Object: "node/" + p.node(), Message: fmt.Sprintf(format, args...), names: map[string]string{"NODE": p.node()}}
}

func poolComplete(f *Facts) []Finding {
	var found []Finding
	for _, p := range f.pools() {
		if p.node() != "" && !p.Complete() && !f.young(p) {
			found = append(found, inPool(p, "Pool %s of driver %s has %d of %d slices of its generation %d.",
				p.ID.Name, p.ID.Driver, len(p.Slices), p.Announced(), p.Slices[0].Spec.Pool.Generation))
		}
	}
	return found
}

func slicesLeftBehind(f *Facts) []Finding {
	nodes := map[string]bool{"": true}
	for _, node := range f.Nodes {
		nodes[node.Name] = true
	}
	var found []Finding
	for _, p := range f.pools() {
		// Slices are read after nodes, so a young slice may belong to a node created in between.
		if f.young(p) {
			continue
		}
		left, message := p.Older, fmt.Sprintf("The slice is older than generation %d of its pool %s of driver %s.", p.Slices[0].Spec.Pool.Generation, p.ID.Name, p.ID.Driver)
		if !nodes[p.node()] {
			left, message = slices.Concat(p.Slices, p.Older), fmt.Sprintf("The slice of driver %s is for node %s, which does not exist.", p.ID.Driver, p.node())
		}
		for _, slice := range left {
			found = append(found, Finding{Object: "resourceslice/" + slice.Name, Message: message, names: map[string]string{"SLICE": slice.Name}})
		}
	}
	return found
}

// foreignPartitions existed before any claim: they have a UUID.
func foreignPartitions(f *Facts) []Finding {
	var found []Finding
	for _, p := range f.pools() {
		foreign := slices.DeleteFunc(p.Devices(), func(d *devices.Device) bool {
			return ptr.Deref(d.Attributes["type"].StringValue, "") != "mig" || d.Attributes["uuid"].StringValue == nil
		})
		if p.ID.Driver == f.Driver && len(foreign) > 0 {
			found = append(found, inPool(p, "Mica did not create %s, such as %s.", excerpt.Count(len(foreign), "MIG partition"), foreign[0].Name))
		}
	}
	return found
}

// recoveryDriver is the first with NVML_FI_DEV_GET_GPU_RECOVERY_ACTION (nvml.h).
var recoveryDriver = version.MajorMinor(565, 0)

func driverVersion(f *Facts) []Finding {
	var found []Finding
	for _, p := range f.pools() {
		for _, d := range p.Devices() {
			text := ptr.Deref(d.Attributes["driverVersion"].VersionValue, "")
			if v, err := version.ParseGeneric(text); p.ID.Driver == f.Driver && err == nil && !v.AtLeast(recoveryDriver) {
				found = append(found, inPool(p, "The NVIDIA driver is %s, which is older than R565.", text))
				break
			}
		}
	}
	return found
}
