// Package mps owns the control daemons of CUDA's Multi-Process Service on a node:
// what is wanted of them and how they are is files in one directory, which who
// prepares claims and who keeps the daemons running share. It never decides which
// claim needs a daemon.
package mps

// Daemon is a control daemon as it is wanted.
type Daemon struct {
	// ID is unique on the node, and a file name.
	ID string `json:"id"`
	// Devices are the UUIDs of the GPUs or MIG devices that it serves, in the
	// order in which its clients number them.
	Devices []string `json:"devices"`
	// ThreadPercentage is how much of the multiprocessors a client gets that does
	// not say so itself; 0 for all.
	ThreadPercentage int `json:"threadPercentage,omitempty"`
	// MemoryBytes is how much memory of each device such a client may pin, in the
	// order of Devices; 0, or no entry, for all.
	MemoryBytes []uint64 `json:"memoryBytes,omitempty"`
	// MultiUser lets processes of several users be its clients at the same time.
	MultiUser bool `json:"multiUser,omitempty"`
}

// Limits are those of one client.
type Limits struct {
	// MemoryBytes is how much of the daemon's only device it may pin; 0 for what
	// the daemon allows.
	MemoryBytes uint64
	// Cores is its part of the multiprocessors in percent; 0 for what the daemon allows.
	Cores int
}
