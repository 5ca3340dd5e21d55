// Package fleet reads which GPUs a cluster has, in which shapes claims hold them, what is left of each
// and what is wrong with it. It reads the devices of Mica's driver or NVIDIA's, with the rights of its
// caller, and reports what the caller may not see. It changes nothing, and it prints nothing.
package fleet

import (
	"cmp"
	"context"
	"runtime"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"

	"github.com/mica-gpu/mica/pkg/devices"
)

// Fleet is the part of a cluster that describes GPUs, as far as its reader may see it.
type Fleet struct {
	// Slices are the ResourceSlices of one driver. They may be compact.
	Slices []*resourceapi.ResourceSlice
	Rules  []resourceapi.DeviceTaintRule
	// Holdings are the driver's devices that claims hold.
	Holdings []Holding
	// SlicesHidden reports that the reader may not list slices.
	SlicesHidden bool
	// OfNamespace is the only namespace whose claims are in Holdings; empty: all namespaces. With a
	// namespace, what is free is unknown.
	OfNamespace string
	// Unseen has a sentence for each thing that the reader may not see.
	Unseen []string
}

// GPU is a physical GPU. Unknown fields are empty.
type GPU struct {
	// Node is the node of the pool; empty if the pool belongs to several nodes.
	Node   string `json:"node,omitempty"`
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	// Name is the name of the whole GPU as a device, such as gpu-0.
	Name    string `json:"name"`
	UUID    string `json:"uuid,omitempty"`
	Product string `json:"product,omitempty"`
	// Devices are the names of all devices that the driver publishes for this GPU.
	Devices []string `json:"-"`
	// Uses are the devices of this GPU that claims hold.
	Uses   []Use  `json:"inUse"`
	Memory Memory `json:"memory"`
	// Claims has an entry for each device, or share of one, that a claim holds.
	Claims []Holding `json:"claims"`
	// Room is what a claim without tolerations could get now, one entry per shape and profile. It is
	// nil if unknown, because some claims were not seen.
	Room []Room `json:"room"`
	// Taints are the taints of all its devices, including those with the effect None.
	Taints []Taint `json:"taints"`
	// Problem is a sentence about missing slices or devices.
	Problem string `json:"problem,omitempty"`
}

// Memory is in bytes. 0: unknown.
type Memory struct {
	TotalBytes int64 `json:"totalBytes"`
	// UsedBytes is the memory of the devices that claims hold, whatever their processes use.
	UsedBytes int64 `json:"usedBytes"`
}

// Use is a device that claims hold.
type Use struct {
	Device string `json:"device"`
	// Type is the attribute of the device, such as gpu, mig, timeslice or mps.
	Type    string `json:"type,omitempty"`
	Profile string `json:"profile,omitempty"`
	// Shared reports that several claims may hold the device.
	Shared bool `json:"shared,omitempty"`
	// Parts of OfParts are held of a shared device: of its shares, or of its cores in percent. Both are 0
	// if it counts neither.
	Parts   int64 `json:"parts,omitempty"`
	OfParts int64 `json:"ofParts,omitempty"`
}

// Room is a shape that a claim could get.
type Room struct {
	Type    string `json:"type"`
	Profile string `json:"profile,omitempty"`
	Shared  bool   `json:"shared,omitempty"`
	// Parts of OfParts are free of a shared device.
	Parts   int64 `json:"parts,omitempty"`
	OfParts int64 `json:"ofParts,omitempty"`
}

// Taint is a taint of some or all devices of a GPU.
type Taint struct {
	Key    string                        `json:"key"`
	Value  string                        `json:"value,omitempty"`
	Effect resourceapi.DeviceTaintEffect `json:"effect"`
	Since  *metav1.Time                  `json:"since,omitempty"`
	// Rule is the DeviceTaintRule that set the taint; empty if the driver published it.
	Rule string `json:"rule,omitempty"`
	// Devices of OfDevices that the GPU has carry the taint.
	Devices   int `json:"devices"`
	OfDevices int `json:"ofDevices"`
	// Why is the meaning of the key, and Remedy what to do. Both are empty for an unknown key.
	Why    string `json:"why,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// GPUs returns the GPUs of published devices, and those that only a claim still names.
func (f Fleet) GPUs() []GPU {
	held := map[devices.PoolID][]Holding{}
	for _, h := range f.Holdings {
		held[h.of.Pool] = append(held[h.of.Pool], h)
	}
	for _, of := range held {
		slices.SortFunc(of, Holding.compare)
	}
	published := f.slicesByPool()
	var pools []devices.PoolID
	for id := range published {
		pools = append(pools, id)
	}
	for id := range held {
		if published[id] == nil {
			pools = append(pools, id)
		}
	}
	slices.SortFunc(pools, devices.PoolID.Compare)
	found := make([][]GPU, len(pools))
	workqueue.ParallelizeUntil(context.Background(), runtime.GOMAXPROCS(0), len(pools), func(i int) {
		found[i] = f.pool(pools[i], published[pools[i]], held[pools[i]]).gpus()
	})
	gpus := append([]GPU{}, slices.Concat(found...)...)
	slices.SortStableFunc(gpus, func(a, b GPU) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Driver, b.Driver), cmp.Compare(a.Pool, b.Pool),
			cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name)) // gpu-10 after gpu-9
	})
	return gpus
}

func (f Fleet) slicesByPool() map[devices.PoolID][]*resourceapi.ResourceSlice {
	pools := map[devices.PoolID][]*resourceapi.ResourceSlice{}
	for _, slice := range f.Slices {
		id := devices.PoolOf(slice)
		pools[id] = append(pools[id], slice)
	}
	return pools
}
