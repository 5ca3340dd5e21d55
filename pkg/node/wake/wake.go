// Package wake lets one goroutine wake another. It carries no value.
package wake

// Signal wakes its receiver. Calls of Wake count as one until the receiver has seen it.
type Signal chan struct{}

// New returns a Signal that is not set.
func New() Signal { return make(Signal, 1) }

// Wake never blocks.
func (s Signal) Wake() {
	select {
	case s <- struct{}{}:
	default:
	}
}
