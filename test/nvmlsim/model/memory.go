package model

import (
	"math/bits"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// GetMemoryInfo implements nvml.Device. Where MIG is enabled, what its instances use
// is added up.
func (d *device) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	if ret := d.enter("nvmlDeviceGetMemoryInfo"); ret != nvml.SUCCESS {
		return nvml.Memory{}, ret
	}
	total, used := d.memory()
	return nvml.Memory{Total: total, Free: total - used, Used: used}, nvml.SUCCESS
}

// GetMemoryInfo_v2 implements nvml.Device. The simulated driver reserves nothing.
func (d *device) GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return) {
	if ret := d.enter("nvmlDeviceGetMemoryInfo_v2"); ret != nvml.SUCCESS {
		return nvml.Memory_v2{}, ret
	}
	total, used := d.memory()
	return memoryV2(total, used), nvml.SUCCESS
}

func (d *device) memory() (total, used uint64) {
	d.session.machine.mu.Lock()
	defer d.session.machine.mu.Unlock()
	return d.gpu.board.MemoryBytes(), d.gpu.memoryUsed()
}

func memoryV2(total, used uint64) nvml.Memory_v2 {
	memory := nvml.Memory_v2{Total: total, Free: total - used, Used: used}
	memory.Version = nvml.STRUCT_VERSION(memory, 2)
	return memory
}

// GetBAR1MemoryInfo implements nvml.Device.
func (d *device) GetBAR1MemoryInfo() (nvml.BAR1Memory, nvml.Return) {
	total := d.gpu.bar1Bytes()
	return constant(d, "nvmlDeviceGetBAR1MemoryInfo", nvml.BAR1Memory{Bar1Total: total, Bar1Free: total})
}

// GetNumaNodeId implements nvml.Device. It is about GPUs whose memory is a NUMA
// node of its own, as on Grace; where a GPU is attached, /sys says.
func (d *device) GetNumaNodeId() (int, nvml.Return) {
	return 0, d.refuse("nvmlDeviceGetNumaNodeId")
}

// GetMemoryAffinity implements nvml.Device.
func (d *device) GetMemoryAffinity(nodes int, scope nvml.AffinityScope) ([]uint, nvml.Return) {
	var near []int
	if d.gpu.spec.NUMANode >= 0 {
		near = []int{d.gpu.spec.NUMANode}
	}
	return d.affinity("nvmlDeviceGetMemoryAffinity", near, nodes, scope)
}

// GetCpuAffinity implements nvml.Device.
func (d *device) GetCpuAffinity(cpus int) ([]uint, nvml.Return) {
	return d.affinity("nvmlDeviceGetCpuAffinity", d.gpu.cpus, cpus, nvml.AFFINITY_SCOPE_NODE)
}

// GetCpuAffinityWithinScope implements nvml.Device. Nodes are sockets here.
func (d *device) GetCpuAffinityWithinScope(cpus int, scope nvml.AffinityScope) ([]uint, nvml.Return) {
	return d.affinity("nvmlDeviceGetCpuAffinityWithinScope", d.gpu.cpus, cpus, scope)
}

// affinity answers with a bit set that has as many words as go-nvml asks the C
// library for, which is one for every eight of count. Bits beyond are cut off.
func (d *device) affinity(function string, near []int, count int, scope nvml.AffinityScope) ([]uint, nvml.Return) {
	words := (count-1)/8 + 1
	if words < 1 || words > maxCPUs || scope > nvml.AFFINITY_SCOPE_SOCKET {
		return nil, d.refuseNil(function)
	}
	if ret := d.enter(function); ret != nvml.SUCCESS {
		return nil, ret
	}
	if len(near) == 0 {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	set := make([]uint, words)
	for _, n := range near {
		if n/bits.UintSize < words {
			set[n/bits.UintSize] |= 1 << (n % bits.UintSize)
		}
	}
	return set, nvml.SUCCESS
}
