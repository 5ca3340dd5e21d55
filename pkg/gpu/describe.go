package gpu

// Description takes down what is published of a shape, beside what every shape of its
// GPU says. What is unknown, empty or nil, is left out.
type Description interface {
	Text(attribute, value string)
	Number(attribute string, value *int)
	Truth(attribute string, value *bool)
	// Bytes and Pieces are capacities that one claim has.
	Bytes(capacity string, n uint64)
	Pieces(capacity string, n int)
	// Divisible is a capacity of which each claim takes a part.
	Divisible(capacity string, d Divisible)
}

// Divisible is a capacity in bytes or pieces: each claim takes a number of steps of it,
// one step at least, and as much as Default if it does not say how much.
type Divisible struct {
	Total, Step, Default uint64
	Bytes                bool
}

// Attributes of shapes, in the driver's domain. Those that NVIDIA's driver also
// publishes have its names and meaning, so that CEL written for it selects the same
// devices here.
const (
	AttrUUID        = "uuid"
	AttrParentUUID  = "parentUUID"
	AttrProfile     = "profile"
	AttrIndex       = "index"
	AttrMinor       = "minor"
	AttrECCEnabled  = "eccEnabled"
	AttrNVLinkGroup = "nvlinkGroup"
	AttrInterval    = "timeSliceInterval"
)

// Capacities of shapes, by which also a claim's allocation names what it has of a share.
const (
	// CapacityMemory is in bytes.
	CapacityMemory = "memory"
	// CapacityShares counts the shares of a device that is sliced by time.
	CapacityShares = "shares"
	// CapacityCores is in percent of the multiprocessors.
	CapacityCores = "cores"

	capacityMultiprocessors = "multiprocessors"
	capacityCopyEngines     = "copyEngines"
	capacityDecoders        = "decoders"
	capacityEncoders        = "encoders"
	capacityJPEGEngines     = "jpegEngines"
	capacityOFAEngines      = "ofaEngines"
	// capacityMemorySlice is followed by the slice's number.
	capacityMemorySlice = "memorySlice"
)

// describe says, too, that a device has none of an engine, for selectors that compare
// with it.
func (e Engines) describe(d Description) {
	d.Pieces(capacityMultiprocessors, e.Multiprocessors)
	d.Pieces(capacityCopyEngines, e.CopyEngines)
	d.Pieces(capacityDecoders, e.Decoders)
	d.Pieces(capacityEncoders, e.Encoders)
	d.Pieces(capacityJPEGEngines, e.JPEGEngines)
	d.Pieces(capacityOFAEngines, e.OFAEngines)
}
