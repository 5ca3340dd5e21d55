package sample

import (
	"slices"
	"strconv"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// Unit is a GPU, or a GPU instance that exists on one, whoever has it.
type Unit struct {
	// GPU is the UUID of the physical GPU. UUID is the same, or that of the instance's first MIG
	// device: NVML has the figures of an instance at its MIG devices.
	GPU, UUID string
	// Index is NVML's index of the GPU, Minor the number in /dev/nvidia<Minor>.
	Index, Minor int
	Product      string
	// Instance is NVML's ID of the GPU instance, and Profile its MIG profile. Both are empty for a GPU.
	Instance, Profile string
}

// Units lists the GPUs and their GPU instances. An instance without a MIG device has no figures.
func Units(gpus []gpu.GPU) []Unit {
	var units []Unit
	for _, g := range gpus {
		whole := Unit{GPU: g.UUID, UUID: g.UUID, Index: g.Index, Minor: g.Minor, Product: g.ProductName}
		units = append(units, whole)
		for _, instance := range g.Instances {
			if len(instance.Devices) == 0 {
				continue
			}
			part := whole
			part.UUID, part.Instance = instance.Devices[0].UUID, strconv.Itoa(instance.ID)
			if i := slices.IndexFunc(g.Profiles, func(p gpu.Profile) bool { return p.ID == instance.ProfileID }); i >= 0 {
				part.Profile = g.Profiles[i].Name
			}
			units = append(units, part)
		}
	}
	return units
}

// labels are spelled as in dcgm-exporter (internal/pkg/rendermetrics): "gpu" is the index, "device"
// the device file, and an entire GPU has no GPU_I_PROFILE and no GPU_I_ID. Empty ones are served too:
// Prometheus would put the plugin's own namespace and pod in their place (honor_labels).
var labels = []string{"gpu", "UUID", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID", "namespace", "pod"}

func (u Unit) labels(of Pod) []string {
	return []string{strconv.Itoa(u.Index), u.GPU, "nvidia" + strconv.Itoa(u.Minor), u.Product, u.Profile, u.Instance, of.Namespace, of.Name}
}
