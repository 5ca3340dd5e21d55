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

// describe says, too, that a device has none of an engine, for selectors that compare
// with it.
func (e Engines) describe(d Description) {
	d.Pieces(CapacityMultiprocessors, e.Multiprocessors)
	d.Pieces(capacityCopyEngines, e.CopyEngines)
	d.Pieces(capacityDecoders, e.Decoders)
	d.Pieces(capacityEncoders, e.Encoders)
	d.Pieces(capacityJPEGEngines, e.JPEGEngines)
	d.Pieces(capacityOFAEngines, e.OFAEngines)
}
