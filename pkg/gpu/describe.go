package gpu

// Description collects the attributes and capacities of a shape, beside those that all shapes of
// its GPU have. Unknown values, empty or nil, are left out.
type Description interface {
	Text(attribute, value string)
	Number(attribute string, value *int)
	Truth(attribute string, value *bool)
	// Bytes and Pieces are capacities of a device for one claim.
	Bytes(capacity string, n uint64)
	Pieces(capacity string, n int)
	// Divisible is a capacity that claims share.
	Divisible(capacity string, d Divisible)
}

// Divisible is a capacity in bytes or pieces. Each claim takes Min, or more in multiples of Step, or
// Default if it requests no amount.
type Divisible struct {
	Total, Min, Step, Default uint64
	Bytes                     bool
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
