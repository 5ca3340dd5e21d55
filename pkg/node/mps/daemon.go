// Package mps owns the control daemons of CUDA's Multi-Process Service on a node:
// what is wanted of them and how they are is files in one directory, which who
// prepares claims and who keeps the daemons running share. It never decides which
// claim needs a daemon.
package mps

import (
	"fmt"
	"regexp"
	"slices"
)

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

// mebibyte is the unit of memory limits: CUDA has no smaller one.
const mebibyte = 1 << 20

var (
	// fileName is what an ID may be: it is a directory beside those of the package.
	fileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	// uuid keeps what goes into an environment variable to one entry of a list.
	uuid = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_/-]*$`)
)

// Bounds of both in bytes. A pattern that counts to them takes 0.2 MB of every node.
const maxFileName, maxUUID = 100, 128

// checkID refuses what is no file name, or the name of another file.
func checkID(id string) error {
	if len(id) > maxFileName || !fileName.MatchString(id) || slices.Contains(reserved, id) {
		return fmt.Errorf("%q cannot be the name of an MPS control daemon", id)
	}
	return nil
}

// check refuses what no control daemon could be started with.
func (d Daemon) check() error {
	if err := checkID(d.ID); err != nil {
		return err
	}
	if len(d.Devices) == 0 {
		return fmt.Errorf("MPS control daemon %s is to serve no device", d.ID)
	}
	for _, device := range d.Devices {
		if len(device) > maxUUID || !uuid.MatchString(device) {
			return fmt.Errorf("MPS control daemon %s is to serve %q, which is no UUID of a GPU or MIG device", d.ID, device)
		}
	}
	if d.ThreadPercentage < 0 || d.ThreadPercentage > 100 {
		return fmt.Errorf("MPS control daemon %s is to give clients %d %% of the multiprocessors: at most 100 are there", d.ID, d.ThreadPercentage)
	}
	if len(d.MemoryBytes) > len(d.Devices) {
		return fmt.Errorf("MPS control daemon %s is to limit the memory of %d devices and serves %d", d.ID, len(d.MemoryBytes), len(d.Devices))
	}
	for i, limit := range d.MemoryBytes {
		if limit > 0 && limit < mebibyte {
			return fmt.Errorf("MPS control daemon %s is to limit the memory of %s to %d bytes: the least is %d (1Mi)", d.ID, d.Devices[i], limit, mebibyte)
		}
	}
	return nil
}

func (d Daemon) equal(other Daemon) bool {
	return d.ID == other.ID && d.ThreadPercentage == other.ThreadPercentage && d.MultiUser == other.MultiUser &&
		slices.Equal(d.Devices, other.Devices) && slices.Equal(d.MemoryBytes, other.MemoryBytes)
}
