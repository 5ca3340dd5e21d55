package gpu

// Names of attributes in the driver's domain. Those that NVIDIA's driver also
// publishes have its names and meaning, so that CEL written for it selects the
// same GPUs here.
const (
	AttributeType              = "type"
	AttributeUUID              = "uuid"
	AttributeProductName       = "productName"
	AttributeBrand             = "brand"
	AttributeArchitecture      = "architecture"
	AttributeComputeCapability = "cudaComputeCapability"
	AttributeDriverVersion     = "driverVersion"
	AttributeCUDAVersion       = "cudaDriverVersion"
	AttributeAddressingMode    = "addressingMode"
	AttributeIndex             = "index"
	AttributeMinor             = "minor"
	AttributeECCEnabled        = "eccEnabled"
	AttributeNVLinkGroup       = "nvlinkGroup"
	AttributeParentUUID        = "parentUUID"
	AttributeProfile           = "profile"

	attributeInterval = "timeSliceInterval"
)

// Names of capacities that claims and their allocations name.
const (
	// CapacityMemory is in bytes.
	CapacityMemory = "memory"
	// CapacityShares counts the shares of a device that is sliced by time.
	CapacityShares = "shares"
	// CapacityCores is in percent of the multiprocessors.
	CapacityCores = "cores"
	// CapacityMultiprocessors counts those of a partition, or of the largest one of a GPU.
	CapacityMultiprocessors = "multiprocessors"

	capacityCopyEngines = "copyEngines"
	capacityDecoders    = "decoders"
	capacityEncoders    = "encoders"
	capacityJPEGEngines = "jpegEngines"
	capacityOFAEngines  = "ofaEngines"
	// capacityMemorySlice is followed by the slice's number.
	capacityMemorySlice = "memorySlice"
)
