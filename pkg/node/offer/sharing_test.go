package offer

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

// Whatever policies follow each other, a device that a claim holds stays published, and several claims may have it
// exactly if they could when the claim got it. The scheduler gives a device with live shares to a claim for all of it
// if a slice turns allowMultipleAllocations off (kubernetes/kubernetes#140797, in all releases up to 1.37.2).
func TestNoPolicyChangesWhetherAHeldDeviceIsShared(t *testing.T) {
	for _, machine := range []string{"p5.48xlarge", "mig-static"} {
		gpus := fixture.Node(t, machine).GPUs[:1]
		for seed := range uint64(15) {
			random := rand.New(rand.NewPCG(seed, 140797))
			o := &ofOne{gpus: gpus, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
			held, shared := map[string]journal.Device{}, map[string]bool{}
			for step := range 20 {
				var devices []journal.Device
				for _, name := range slices.Sorted(maps.Keys(held)) {
					if random.IntN(3) == 0 {
						delete(held, name)
						delete(shared, name)
						continue
					}
					devices = append(devices, held[name])
				}
				o.apply(time.Duration(random.Int64N(int64(2*withdrawalTime))), anyPolicy(random, gpus[0]), devices...)
				published := map[string]bool{}
				for _, s := range slice.Pool(gpu.Node{GPUs: gpus}, o.offer.shapes, o.offer.taints).Slices {
					for _, d := range s.Devices {
						published[d.Name] = ptr.Deref(d.AllowMultipleAllocations, false)
					}
				}
				for name, was := range shared {
					if is, there := published[name]; !there || is != was {
						t.Fatalf("%s, seed %d, step %d: %s is held and was shared: %t; it is published: %t, and shared: %t", machine, seed, step, name, was, there, is)
					}
				}
				for _, shape := range o.offer.shapes {
					// The scheduler may also give a device that has just been withdrawn.
					if _, already := held[shape.Name()]; !already && random.IntN(4) == 0 {
						held[shape.Name()] = journal.Device{Device: shape.Name(), Form: shape.Form()}
						shared[shape.Name()] = published[shape.Name()]
					}
				}
			}
		}
	}
}

// anyPolicy offers the GPU and its profiles in some of the ways in which the GPU can be offered.
func anyPolicy(random *rand.Rand, g gpu.GPU) gpu.Policy {
	some := func() bool { return random.IntN(2) == 0 }
	slicing := func() gpu.TimeSlicing {
		return gpu.TimeSlicing{Replicas: gpu.MinShares + random.IntN(8), Interval: gpu.Intervals[random.IntN(len(gpu.Intervals))]}
	}
	policy := gpu.Policy{Whole: some(), MIG: some(), SharedProfiles: map[string]gpu.Sharing{}}
	if some() {
		policy.TimeSlicing = ptr.To(slicing())
	}
	if some() {
		policy.MPS = &gpu.MPS{Clients: gpu.MinShares + random.IntN(8)}
	}
	for _, profile := range g.Profiles {
		switch random.IntN(4) {
		case 0:
			policy.SharedProfiles[profile.Name] = gpu.TimeSlicing{Replicas: gpu.MinShares + random.IntN(8), Interval: gpu.DefaultInterval}
		case 1:
			policy.SharedProfiles[profile.Name] = gpu.MPS{Clients: gpu.MinShares + random.IntN(8)}
		}
	}
	return policy
}
