package model

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// GetMemoryInfo implements nvml.Device. Where MIG is enabled, what its instances use
// is added up.
func (d *device) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	return read(d.refuser, "nvmlDeviceGetMemoryInfo", d.memory)
}

// GetMemoryInfo_v2 implements nvml.Device. The simulated driver reserves nothing.
func (d *device) GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return) {
	return read(d.refuser, "nvmlDeviceGetMemoryInfo_v2", func() nvml.Memory_v2 { return memoryV2(d.memory()) })
}

func (d *device) memory() nvml.Memory { return memoryOf(d.gpu.board.MemoryBytes(), d.gpu.memoryUsed()) }

// GetMemoryInfo implements nvml.Device: the memory of the GPU instance, which
// its compute instances share.
func (d migDevice) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	return read(d.refuser, "nvmlDeviceGetMemoryInfo", d.memory)
}

// GetMemoryInfo_v2 implements nvml.Device.
func (d migDevice) GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return) {
	return read(d.refuser, "nvmlDeviceGetMemoryInfo_v2", func() nvml.Memory_v2 { return memoryV2(d.memory()) })
}

func (d migDevice) memory() nvml.Memory {
	return memoryOf(d.instance.parent.memoryBytes(), d.instance.parent.work.MemoryBytes)
}

func memoryOf(total, used uint64) nvml.Memory {
	return nvml.Memory{Total: total, Free: total - used, Used: used}
}

func memoryV2(m nvml.Memory) nvml.Memory_v2 {
	memory := nvml.Memory_v2{Total: m.Total, Free: m.Free, Used: m.Used}
	memory.Version = nvml.STRUCT_VERSION(memory, 2)
	return memory
}
