package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

func sliceChecks() []Check {
	return []Check{{
		Name:     "pool-complete",
		Severity: Error,
		Looks:    "the newest generation of each pool of a node, of all drivers",
		Why:      "The scheduler gives no device of a pool of which a slice is missing, and Cluster Autoscaler keeps such a node as not started.",
		Fix:      "kubectl get resourceslices --field-selector spec.nodeName=NODE --output custom-columns=NAME:.metadata.name,DRIVER:.spec.driver,GENERATION:.spec.pool.generation,OF:.spec.pool.resourceSliceCount",
		Source:   "k8s.io/api/resource/v1, ResourcePool.resourceSliceCount; kubernetes/autoscaler#8109",
		needs:    []Kind{KindSlices},
		find:     poolComplete,
	}, {
		Name:     "slices-left-behind",
		Severity: Warning,
		Looks:    "slices of nodes that do not exist, and slices of an older generation than their pool's",
		Why:      "A driver that was removed, or could not delete them, leaves slices; of a node that comes back, they promise devices that nobody prepares.",
		Fix:      "kubectl delete resourceslice SLICE",
		Source:   "k8s.io/api/resource/v1, ResourcePool.generation",
		needs:    []Kind{KindNodes, KindSlices},
		find:     slicesLeftBehind,
	}, {
		Name:     "foreign-partitions",
		Severity: Info,
		Looks:    "MIG devices with a UUID that no claim has made",
		Why:      "Mica offers partitions that somebody else made as they are, never destroys them, and does not offer their room in other shapes.",
		Fix:      "Where nobody needs them, on NODE: nvidia-smi mig --destroy-compute-instance && nvidia-smi mig --destroy-gpu-instance",
		Source:   "docs on MIG",
		needs:    []Kind{KindSlices},
		find:     foreignPartitions,
	}, {
		Name:     "driver-version",
		Severity: Warning,
		Looks:    "the attribute driverVersion of published devices",
		Why:      "Drivers before R565 do not say which action a faulty GPU needs, so its health is judged by its XIDs alone.",
		Fix:      "Upgrade the NVIDIA driver of NODE to R565 or newer: see docs on the GPU Operator, Upgrading the driver.",
		Source:   "nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
		needs:    []Kind{KindSlices},
		find:     driverVersion,
	}}
}

// pools are all, in order.
func (f *Facts) pools() []PoolID {
	return slices.SortedFunc(maps.Keys(f.Pools), func(a, b PoolID) int {
		return strings.Compare(a.Node+" "+a.Driver+" "+a.Name, b.Node+" "+b.Driver+" "+b.Name)
	})
}

func poolComplete(f *Facts) []Finding {
	var found []Finding
	for _, id := range f.pools() {
		pool := f.Pools[id]
		if id.Node == "" || pool.Complete() || f.Now.Sub(pool.Since) < patience {
			continue
		}
		found = append(found, Finding{
			Object:  "node/" + id.Node,
			Message: fmt.Sprintf("Pool %s of driver %s has %d of %d slices of its generation %d.", id.Name, id.Driver, len(pool.Slices), pool.Announced, pool.Generation),
			names:   map[string]string{"NODE": id.Node},
		})
	}
	return found
}

func slicesLeftBehind(f *Facts) []Finding {
	nodes := map[string]bool{}
	for i := range f.Nodes {
		nodes[f.Nodes[i].Name] = true
	}
	var found []Finding
	add := func(slice, message string) {
		found = append(found, Finding{Object: "resourceslice/" + slice, Message: message, names: map[string]string{"SLICE": slice}})
	}
	for _, id := range f.pools() {
		pool := f.Pools[id]
		// Nodes and slices are read one after the other, and the node's may be new.
		if f.Now.Sub(pool.Since) < patience {
			continue
		}
		if id.Node != "" && !nodes[id.Node] {
			for _, slice := range slices.Concat(pool.Slices, pool.Older) {
				add(slice, fmt.Sprintf("The slice of driver %s is of node %s, which does not exist.", id.Driver, id.Node))
			}
			continue
		}
		for _, slice := range pool.Older {
			add(slice, fmt.Sprintf("The slice is older than generation %d of its pool %s of driver %s.", pool.Generation, id.Name, id.Driver))
		}
	}
	return found
}

func foreignPartitions(f *Facts) []Finding {
	var found []Finding
	for _, id := range f.pools() {
		pool := f.Pools[id]
		if id.Driver != f.Driver || len(pool.Foreign) == 0 {
			continue
		}
		found = append(found, Finding{
			Object:  "node/" + id.Node,
			Message: fmt.Sprintf("%d MIG partitions were made by somebody else, such as %s.", len(pool.Foreign), pool.Foreign[0]),
			names:   map[string]string{"NODE": id.Node},
		})
	}
	return found
}

var recoveryDriver = version.MajorMinor(565, 0)

func driverVersion(f *Facts) []Finding {
	var found []Finding
	for _, id := range f.pools() {
		if id.Driver != f.Driver {
			continue
		}
		for _, text := range slices.Sorted(maps.Keys(f.Pools[id].DriverVersions)) {
			if v, err := version.ParseGeneric(text); err == nil && !v.AtLeast(recoveryDriver) {
				found = append(found, Finding{
					Object:  "node/" + id.Node,
					Message: fmt.Sprintf("The NVIDIA driver is %s, which is older than R565.", text),
					names:   map[string]string{"NODE": id.Node},
				})
			}
		}
	}
	return found
}
