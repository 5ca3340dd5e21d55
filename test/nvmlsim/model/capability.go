package model

// Capability devices guard MIG instances: a process may use an instance if it
// can open /dev/nvidia-caps/nvidia-cap<minor> of it. The kernel module numbers
// those of all instances that GPUs can have, 15 GPU instances of 8 compute
// instances each, behind its own two.
const (
	// ConfigCapability guards the configuration of MIG, MonitorCapability
	// looking at instances of others.
	ConfigCapability  = 1
	MonitorCapability = 2

	// MaxGPUInstances and MaxComputeInstances bound the IDs of instances, for
	// the numbering's sake.
	MaxGPUInstances     = 15
	MaxComputeInstances = 8

	reservedCapabilities = 3
)

// GPUInstanceCapability is the minor number of a GPU instance's capability device.
func GPUInstanceCapability(gpuMinor, gpuInstance int) int {
	return reservedCapabilities + (gpuMinor*MaxGPUInstances+gpuInstance)*(MaxComputeInstances+1)
}

// ComputeInstanceCapability is the minor number of a compute instance's.
func ComputeInstanceCapability(gpuMinor, gpuInstance, computeInstance int) int {
	return GPUInstanceCapability(gpuMinor, gpuInstance) + 1 + computeInstance
}

func (i *gpuInstance) capability() int { return GPUInstanceCapability(i.gpu.spec.Minor, i.id) }

func (c *computeInstance) capability() int {
	return ComputeInstanceCapability(c.parent.gpu.spec.Minor, c.parent.id, c.id)
}

// mayUse reports whether the session's process can open the instance's device.
func (s *Session) mayUse(i *gpuInstance) bool {
	return !s.confined || s.capabilities[i.capability()]
}

// sees reports whether a MIG device exists for the session's process.
func (s *Session) sees(c *computeInstance) bool {
	return c != nil && (!s.confined || s.mayUse(c.parent) && s.capabilities[c.capability()])
}

// mayConfigure reports whether the session's process may change MIG.
func (s *Session) mayConfigure() bool { return !s.confined || s.capabilities[ConfigCapability] }
