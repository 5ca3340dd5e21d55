// Package inventory says which GPUs a cluster has, in what shape each is in use, who has it, what of
// it is left and what is wrong with it. It decides by values that somebody has read, of Mica's driver
// or NVIDIA's, and prints them. It reads nothing itself, and guesses nothing that was not shown to it.
package inventory

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/pkg/devices"
)

// Seen is what somebody may see of a cluster.
type Seen struct {
	// Slices are those of one driver. They may be compact.
	Slices []*resourceapi.ResourceSlice
	Rules  []resourceapi.DeviceTaintRule
	// Holdings are what claims have of the driver's devices.
	Holdings []Holding
	// SlicesHidden and RulesHidden tell that they may not be seen: what is missing of them says nothing.
	// ClaimsHidden tells that no claim may be, not even of OfNamespace.
	SlicesHidden, RulesHidden, ClaimsHidden bool
	// OfNamespace is the only namespace whose claims are in Holdings, empty: all are. Of a part
	// nobody can tell what is free.
	OfNamespace string
	// NotSeen has a sentence for each thing that was not shown, such as for want of a right.
	NotSeen []string
}

// Inventory is what is known of a cluster's GPUs. It is printed as JSON and YAML as it is.
type Inventory struct {
	GPUs []GPU `json:"gpus"`
	// NotSeen has sentences that say what is missing, and what to do about it.
	NotSeen []string `json:"notSeen,omitempty"`
}

// GPU is a physical one. What is unknown is absent.
type GPU struct {
	// Node is that of the pool, empty for a pool of no node in particular.
	Node   string `json:"node,omitempty"`
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	// Name is that of its whole device, such as gpu-0.
	Name    string `json:"name"`
	UUID    string `json:"uuid,omitempty"`
	Product string `json:"product,omitempty"`
	// Devices are the names of all shapes that are published of it.
	Devices []string `json:"-"`
	// Uses are the shapes in which claims have it now, none where nobody has it.
	Uses   []Use  `json:"inUse"`
	Memory Memory `json:"memory"`
	// Claims has an entry for each device, or share of one, that a claim has of it.
	Claims []Hold `json:"claims"`
	// Room is what a claim that tolerates no taint could get now, one entry per shape and profile.
	// It is nil where it is unknown, because some claims were not seen.
	Room []Room `json:"room"`
	// Taints are those of its devices, also those that only tell something.
	Taints []Taint `json:"taints"`
	// Problem is a sentence about what the scheduler, or the node's driver, does not see as it
	// should be.
	Problem string `json:"problem,omitempty"`
}

// Memory is in bytes, of all that the GPU has: 0 where that is unknown.
type Memory struct {
	TotalBytes int64 `json:"totalBytes"`
	// UsedBytes is what devices of claims have, not what their processes have taken of it.
	UsedBytes int64 `json:"usedBytes"`
}

// Use is a device that claims have.
type Use struct {
	Device string `json:"device"`
	// Type is that of the device's attribute, such as gpu, mig, timeslice or mps.
	Type    string `json:"type,omitempty"`
	Profile string `json:"profile,omitempty"`
	// Parts and OfParts are of a device in shares: what claims have of its shares, or of its
	// cores in percent.
	Parts   int64 `json:"parts,omitempty"`
	OfParts int64 `json:"ofParts,omitempty"`
}

// Hold is what a claim has of a GPU.
type Hold struct {
	Namespace string `json:"namespace"`
	Claim     string `json:"claim"`
	Request   string `json:"request"`
	Device    string `json:"device"`
	// Share tells the shares of a device apart.
	Share string `json:"share,omitempty"`
	// Memory, Shares and Cores are what a share has of its device.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	Shares      int64 `json:"shares,omitempty"`
	Cores       int64 `json:"cores,omitempty"`
	// Pods may use it. There are none while it is allocated and no pod uses it yet.
	Pods []string `json:"pods,omitempty"`
	// Admin tells that it only looks, and takes nothing.
	Admin bool `json:"admin,omitempty"`
}

// Room is a shape that could be had.
type Room struct {
	Type    string `json:"type"`
	Profile string `json:"profile,omitempty"`
	// Parts and OfParts are as in Use: how many are left.
	Parts   int64 `json:"parts,omitempty"`
	OfParts int64 `json:"ofParts,omitempty"`
}

// Taint is on some or all of the GPU's devices.
type Taint struct {
	Key    string                        `json:"key"`
	Value  string                        `json:"value,omitempty"`
	Effect resourceapi.DeviceTaintEffect `json:"effect"`
	Since  *metav1.Time                  `json:"since,omitempty"`
	// Rule is the DeviceTaintRule that it comes from, empty if the driver has published it.
	Rule string `json:"rule,omitempty"`
	// Devices have it, of OfDevices that the GPU has.
	Devices   int `json:"devices"`
	OfDevices int `json:"ofDevices"`
	// Why is what the key means, and Remedy what to do; both are empty where the key is unknown.
	Why    string `json:"why,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// Of finds the GPUs: those of published devices, and those that only a claim still names.
func Of(seen Seen) Inventory {
	found := Inventory{GPUs: []GPU{}, NotSeen: seen.NotSeen}
	held, published := byPool(seen.Holdings), slicesByPool(seen.Slices)
	for _, gpus := range gpusOf(poolsOf(published, held), func(pool devices.PoolID) []GPU {
		return newPoolReader(pool, published[pool], held[pool], seen).gpus()
	}) {
		found.GPUs = append(found.GPUs, gpus...)
	}
	slices.SortStableFunc(found.GPUs, func(a, b GPU) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Driver, b.Driver), cmp.Compare(a.Pool, b.Pool), byNumber(a.Name, b.Name))
	})
	return found
}

// gpusOf reads pools with all processors: there are thousands on a large cluster, and none needs another.
func gpusOf(pools []devices.PoolID, read func(devices.PoolID) []GPU) [][]GPU {
	found := make([][]GPU, len(pools))
	var next atomic.Int64
	var readers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(pools)) {
		readers.Go(func() {
			for i := next.Add(1) - 1; int(i) < len(pools); i = next.Add(1) - 1 {
				found[i] = read(pools[i])
			}
		})
	}
	readers.Wait()
	return found
}

func slicesByPool(published []*resourceapi.ResourceSlice) map[devices.PoolID][]*resourceapi.ResourceSlice {
	pools := map[devices.PoolID][]*resourceapi.ResourceSlice{}
	for _, slice := range published {
		id := devices.PoolOf(slice)
		pools[id] = append(pools[id], slice)
	}
	return pools
}

func byPool(holdings []Holding) map[devices.PoolID][]Holding {
	held := map[devices.PoolID][]Holding{}
	for _, h := range holdings {
		held[h.Device.Pool] = append(held[h.Device.Pool], h)
	}
	for _, of := range held {
		slices.SortFunc(of, Holding.compare)
	}
	return held
}

func poolsOf(published map[devices.PoolID][]*resourceapi.ResourceSlice, held map[devices.PoolID][]Holding) []devices.PoolID {
	var pools []devices.PoolID
	for id := range published {
		pools = append(pools, id)
	}
	for id := range held {
		if _, is := published[id]; !is {
			pools = append(pools, id)
		}
	}
	slices.SortFunc(pools, devices.PoolID.Compare)
	return pools
}

// byNumber puts gpu-10 after gpu-9.
func byNumber(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}
