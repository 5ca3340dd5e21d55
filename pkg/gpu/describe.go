package gpu

// Description collects what is published about a shape, beside what is common to the shapes of
// its GPU. What is unknown, empty or nil, is left out.
type Description interface {
	Text(attribute, value string)
	Number(attribute string, value *int)
	Truth(attribute string, value *bool)
	// Bytes and Pieces are capacities that one claim has.
	Bytes(capacity string, n uint64)
	Pieces(capacity string, n int)
	// Divisible is a capacity that claims divide.
	Divisible(capacity string, d Divisible)
}

// Divisible is a capacity in bytes or pieces: each claim takes a number of steps of it,
// one step at least, and Default if it does not request an amount.
type Divisible struct {
	Total, Step, Default uint64
	Bytes                bool
}

// describe includes engines that the device lacks, for selectors that compare with them.
func (e Engines) describe(d Description) {
	d.Pieces(CapacityMultiprocessors, e.Multiprocessors)
	d.Pieces(capacityCopyEngines, e.CopyEngines)
	d.Pieces(capacityDecoders, e.Decoders)
	d.Pieces(capacityEncoders, e.Encoders)
	d.Pieces(capacityJPEGEngines, e.JPEGEngines)
	d.Pieces(capacityOFAEngines, e.OFAEngines)
}
