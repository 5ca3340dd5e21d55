package model

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/catalog"
)

// instances are the MIG instances of one GPU. Machine.mu guards it, and only
// one change of it is under way at a time.
type instances struct {
	byID map[int]*gpuInstance
	// devices are the MIG devices, one a compute instance, at their index. One
	// that goes leaves a hole, which the next one takes.
	devices []*computeInstance
}

// existence is what a handle looks at before it is used.
type existence struct{ ended bool }

// gpuInstance is one GPU instance.
type gpuInstance struct {
	existence
	gpu     *gpu
	id      int
	profile catalog.Profile
	start   int
	compute map[int]*computeInstance
	work    work
	// occupied is set by Occupy; contexts counts those
	// of processes that the machine knows.
	occupied bool
	contexts int
}

func (i *gpuInstance) inUse() bool { return i.occupied || i.contexts > 0 }

// computeInstance is one compute instance, and the MIG device that it is.
type computeInstance struct {
	existence
	parent  *gpuInstance
	id      int
	profile computeProfile
	start   int
	uuid    string
}

func newInstances(board catalog.Board) instances {
	if board.MIG == nil {
		return instances{}
	}
	return instances{byID: map[int]*gpuInstance{}, devices: make([]*computeInstance, computeSlices(*board.MIG))}
}

func (i *gpuInstance) units() units { return unitsOf(i.start, i.profile.Size) }

// taken is what the GPU's instances occupy and own.
func (g *gpu) taken() (units, engines) {
	var of units
	var owned engines
	for _, i := range g.instances.byID {
		of |= i.units()
		owned = owned.plus(enginesOf(i.profile))
	}
	return of, owned
}

// freeStarts are the placements at which an instance of the profile can be
// created now.
func (g *gpu) freeStarts(p catalog.Profile) []int {
	taken, owned := g.taken()
	if !owned.plus(enginesOf(p)).within(allEngines(*g.board.MIG)) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(p.Starts), func(start int) bool { return taken&unitsOf(start, p.Size) != 0 })
}

// remaining is how many more instances of the profile can be created.
func (g *gpu) remaining(p catalog.Profile) int {
	_, owned := g.taken()
	count := 0
	for range g.freeStarts(p) {
		if owned = owned.plus(enginesOf(p)); !owned.within(allEngines(*g.board.MIG)) {
			break
		}
		count++
	}
	return count
}

// create makes a GPU instance, at the first free placement if start is nil.
func (g *gpu) create(p catalog.Profile, start *int) (*gpuInstance, nvml.Return) {
	free := g.freeStarts(p)
	switch {
	case start != nil && !slices.Contains(p.Starts, *start):
		return nil, nvml.ERROR_INVALID_ARGUMENT
	case len(free) == 0, start != nil && !slices.Contains(free, *start):
		return nil, nvml.ERROR_INSUFFICIENT_RESOURCES
	}
	if start == nil {
		start = &free[0]
	}
	i := &gpuInstance{gpu: g, id: g.instanceID(p, *start), profile: p, start: *start, compute: map[int]*computeInstance{}}
	g.instances.byID[i.id] = i
	return i, nvml.SUCCESS
}

// instanceID numbers instances by what part of the GPU they have: the whole is
// 0, halves are 1 and 2, quarters 3 to 6, eighths 7 to 14. Which half has which
// number differs between listings of real GPUs, so here it does with the index.
func (g *gpu) instanceID(p catalog.Profile, start int) int {
	parts := g.board.MIG.MemorySlices / p.Size
	part := start / p.Size
	if parts == 2 {
		part ^= g.index & 1
	}
	return parts - 1 + part
}

// destroy ends a GPU instance that nothing uses.
func (i *gpuInstance) destroy() nvml.Return {
	switch {
	case i.ended:
		return nvml.ERROR_INVALID_ARGUMENT
	case i.inUse() || len(i.compute) > 0:
		return nvml.ERROR_IN_USE
	}
	i.end()
	return nvml.SUCCESS
}

// end ends a GPU instance with all that is in it.
func (i *gpuInstance) end() {
	for _, c := range i.compute {
		c.end()
	}
	i.ended = true
	delete(i.gpu.instances.byID, i.id)
}

// freeComputeStarts are the placements at which a compute instance can be created now.
func (i *gpuInstance) freeComputeStarts(p computeProfile) []int {
	var taken units
	for _, c := range i.compute {
		taken |= unitsOf(c.start, c.profile.slices)
	}
	return slices.DeleteFunc(slices.Clone(p.starts), func(start int) bool { return taken&unitsOf(start, p.slices) != 0 })
}

// createCompute makes a compute instance at the first free placement.
func (i *gpuInstance) createCompute(p computeProfile) (*computeInstance, nvml.Return) {
	free := i.freeComputeStarts(p)
	switch {
	case i.ended:
		return nil, nvml.ERROR_INVALID_ARGUMENT
	case len(free) == 0:
		return nil, nvml.ERROR_INSUFFICIENT_RESOURCES
	}
	id := 0
	for i.compute[id] != nil {
		id++
	}
	all := &i.gpu.instances
	c := &computeInstance{parent: i, id: id, profile: p, start: free[0], uuid: i.deviceUUID(free[0])}
	i.compute[id] = c
	// There are as many indices as slices, and every device has one.
	all.devices[slices.Index(all.devices, nil)] = c
	return c, nvml.SUCCESS
}

// deviceUUID makes the UUID of a MIG device. NVIDIA's driver derives it, so that an instance
// in the place of one that was destroyed has the same UUID again, whoever makes it and
// whatever its profile. Read (nvGenerateSmcUuid in src/nvidia/src/kernel/gpu/gpu_uuid.c of
// NVIDIA/open-gpu-kernel-modules): version 5, the first 16 bytes of a SHA-1 of the chip's ID, the
// board's PDI, the ID of the GPU instance and that of an engine, the "sys pipe". Assumed: that a
// bare machine calls it so, which the GSP's firmware does out of sight, and that the first
// compute slice stands for the sys pipe. Here the GPU's UUID stands for chip and PDI.
func (i *gpuInstance) deviceUUID(computeStart int) string {
	sum := sha1.Sum(fmt.Appendf(nil, "%s SMC %d %d", i.gpu.spec.UUID, i.id, computeStart))
	d := []byte(hex.EncodeToString(sum[:16]))
	d[12] = '5'
	d[16] = "89ab"[d[16]&3]
	return "MIG-" + hyphenated(d)
}

// destroy ends a compute instance that no process uses.
func (c *computeInstance) destroy() nvml.Return {
	switch {
	case c.ended:
		return nvml.ERROR_INVALID_ARGUMENT
	case c.parent.inUse():
		return nvml.ERROR_IN_USE
	}
	c.end()
	return nvml.SUCCESS
}

func (c *computeInstance) end() {
	c.ended = true
	delete(c.parent.compute, c.id)
	c.parent.gpu.instances.devices[c.index()] = nil
}

// index is the MIG device's index below its GPU.
func (c *computeInstance) index() int { return slices.Index(c.parent.gpu.instances.devices, c) }

// profileName is how nvidia-smi writes the profile: the compute slices are said
// where they are not all of the GPU instance's.
func (c *computeInstance) profileName() string { return c.profile.nameIn(c.parent.profile) }
