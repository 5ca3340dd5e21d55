package model

import (
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
