package migrate

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// Limits of a GPUPolicy (api/v1alpha1).
const (
	maxReplicas = 128
	maxClients  = 48
)

// blocked is a field of a config that has no place in a GPUPolicy.
type blocked struct{ field, what, do string }

// shapes are what a node with this config offers. Shared resources are only offered in shares, as
// the device plugin does.
func (p pluginConfig) shapes() (shapes v1alpha1.Shapes, wrong []blocked) {
	field := "sharing.timeSlicing"
	r := p.Sharing.TimeSlicing
	if p.Sharing.MPS != nil {
		field, r = "sharing.mps", p.Sharing.MPS
	}
	if p.Flags.MIGStrategy == "mixed" || p.Flags.MIGStrategy == "single" {
		shapes.MIG = &v1alpha1.MIG{}
	}
	shapes.Whole = &v1alpha1.Whole{}
	if r == nil {
		return shapes, nil
	}
	for i, of := range r.Resources {
		if of.Replicas < 2 {
			continue
		}
		if why := addShares(&shapes, of, p.Sharing.MPS != nil); why != nil {
			why.field = fmt.Sprintf("%s.resources[%d]", field, i)
			wrong = append(wrong, *why)
		}
	}
	return shapes, wrong
}

// addShares adds a resource that is shared; the answer is why that cannot be.
func addShares(shapes *v1alpha1.Shapes, of replicatedResource, mps bool) *blocked {
	if most := map[bool]int64{false: maxReplicas, true: maxClients}[mps]; of.Replicas > most {
		return &blocked{what: fmt.Sprintf("%d replicas are more than a GPUPolicy takes, which is %d", of.Replicas, most), do: "lower replicas; a claim can also ask for less than a share of default size"}
	}
	switch name := of.full(); {
	case name == resourceGPU:
		shapes.Whole = nil
		if mps {
			shapes.MPS = &v1alpha1.MPS{Clients: int32(of.Replicas)}
		} else {
			shapes.TimeSlice = &v1alpha1.TimeSlice{Replicas: int32(of.Replicas)}
		}
	case strings.HasPrefix(name, resourceMIG):
		profile, err := profileOf(name)
		if err != nil {
			return &blocked{what: err.Error(), do: "leave the resource out"}
		}
		shared := v1alpha1.SharedProfile{Profile: v1alpha1.ProfileName(profile)}
		if mps {
			shared.MPS = &v1alpha1.MPS{Clients: int32(of.Replicas)}
		} else {
			shared.TimeSlice = &v1alpha1.TimeSlice{Replicas: int32(of.Replicas)}
		}
		if shapes.MIG == nil {
			shapes.MIG = &v1alpha1.MIG{}
		}
		shapes.MIG.Shared = append(shapes.MIG.Shared, shared)
	default:
		return &blocked{what: name + " is no resource of the device plugin that Mica knows", do: "leave it out, or make a DeviceClass with that extendedResourceName"}
	}
	return nil
}

// note is what is said of a field of a config.
type note struct {
	field    string
	is       bool
	outcome  Outcome
	what, do string
}

// tellFlags says what becomes of a config's other fields.
func (m *migration) tellFlags(c config) {
	for _, n := range c.of.notes(m.Profile) {
		if n.is {
			m.find(c.document, n.outcome, c.field(n.field), n.what, n.do)
		}
	}
}

// notes say of each field what a user has to know. What has no consequence with claims, such as
// deviceListStrategy, is not mentioned: claims always come by CDI.
func (p pluginConfig) notes(profile string) []note {
	f := p.Flags
	mig := f.MIGStrategy == "single" || f.MIGStrategy == "mixed"
	return []note{
		{"sharing.mps", p.Sharing.MPS != nil, Look, "shares under MPS need the supervisor", "set mps.enabled=true in Mica's chart"},
		{"sharing.timeSlicing", p.Sharing.MPS != nil && p.Sharing.TimeSlicing != nil, Look, "with sharing.mps, the device plugin takes no notice of it, and the GPUPolicy does not have it", ""},
		{"flags.migStrategy", mig, Look, "partitions that exist are offered as they are, and where the GPU allows, others are made for the claims that ask for them", "to have certain profiles only, name them in spec.shapes.mig.profiles"},
		{"flags.migStrategy", f.MIGStrategy == "single" && profile == "", Look, "if the nodes have MIG on, nvidia.com/gpu was a partition there, and workloads are migrated to entire GPUs", "name the profile with --mig-profile, and migrate those workloads again"},
		{"flags.mpsRoot", given(f.MPSRoot), Look, "the directory of MPS is a value of Mica's chart", "set mps.root"},
		{"flags.nvidiaDriverRoot", given(f.DriverRoot) && *f.DriverRoot != "/", Look, "the driver root is a value of Mica's chart", "set nvidiaDriverRoot"},
		{"flags.nvidiaDevRoot", given(f.DevRoot) && *f.DevRoot != "/", Look, "Mica finds the device nodes by itself", "leave it out"},
		{"flags.gdrcopyEnabled", on(f.GDRCopyEnabled), Blocked, "claims of Mica have no device node of GDRCopy", "keep workloads that use it on nodes with the device plugin"},
		{"flags.gdsEnabled", on(f.GDSEnabled), Blocked, "claims of Mica have no device nodes of GPUDirect Storage", "keep workloads that use it on nodes with the device plugin"},
		{"flags.mofedEnabled", on(f.MOFEDEnabled), Blocked, "claims of Mica have no device nodes of InfiniBand", "let the driver of the network cards give them out"},
		{"flags.deviceDiscoveryStrategy", given(f.DeviceDiscoveryStrategy) && *f.DeviceDiscoveryStrategy == "tegra", Blocked, "Mica finds GPUs by NVML, which Tegra does not have", "keep such nodes on the device plugin"},
		{"flags.plugin.sharedDevicesAllocationPolicy", is(f.Plugin, "sharedDevicesAllocationPolicy"), Look, "the scheduler fills a GPU in shares before it begins another, which is packed", ""},
		{"flags.gfd", len(f.GFD) > 0, Unchanged, "GPU Feature Discovery labels nodes with Mica as before, as long as it runs", ""},
		{"imex", p.Imex != nil && len(p.Imex.ChannelIDs) > 0, Blocked, "Mica gives out no IMEX channels", "use ComputeDomains of NVIDIA's DRA driver, which runs beside Mica"},
		{"resources", len(p.Resources) > 0, Look, "the device plugin takes no notice of it either", "leave it out"},
	}
}

func given(text *string) bool { return text != nil && *text != "" }

func on(flag *bool) bool { return flag != nil && *flag }

func is(fields map[string]json.RawMessage, key string) bool {
	_, has := fields[key]
	return has
}
