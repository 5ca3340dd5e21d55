// Package mps runs the control daemons of CUDA's Multi-Process Service on a node.
// The plugin and the supervisor share one directory: the plugin writes the daemons that
// claims need, and the supervisor writes their status. The package never decides which
// claim needs a daemon.
package mps

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
)

// Daemon is the desired state of a control daemon.
type Daemon struct {
	// ID is unique on the node, and a file name.
	ID string `json:"id"`
	// Devices are the UUIDs of the GPUs or MIG devices that it serves, in the
	// order in which its clients number them.
	Devices []string `json:"devices"`
	// ThreadPercentage is the default part of the multiprocessors per client. 0: all.
	ThreadPercentage int `json:"threadPercentage,omitempty"`
	// MemoryBytes is the default limit of pinned memory per client, for each of
	// Devices in its order. 0, or no entry: all.
	MemoryBytes []uint64 `json:"memoryBytes,omitempty"`
	// MultiUser lets processes of several users be clients at the same time.
	MultiUser bool `json:"multiUser,omitempty"`
}

// Limits are those of one client.
type Limits struct {
	// MemoryBytes limits pinned memory of the daemon's only device. 0: the daemon's default.
	MemoryBytes uint64
	// Cores is the part of the multiprocessors in percent. 0: the daemon's default.
	Cores int
}

// State is a step in the life of a daemon.
type State string

const (
	// Starting daemons have no clients yet, or have lost them.
	Starting State = "starting"
	// Ready daemons accept clients.
	Ready State = "ready"
	// Failed daemons did not start several times in a row; the supervisor goes on trying.
	Failed State = "failed"
	// Stopping daemons are no longer desired.
	Stopping State = "stopping"
)

// Status is the observed state of a daemon. Only the supervisor writes it.
type Status struct {
	// Daemon is what runs, or is to run. It has only an ID if the desired state cannot be read.
	Daemon Daemon `json:"daemon"`
	State  State  `json:"state"`
	// Reason is why it is not ready, in a sentence.
	Reason string `json:"reason,omitempty"`
	// Restarts counts how often clients have lost a ready daemon.
	Restarts int `json:"restarts,omitempty"`
	// SingleUser: a multi-user daemon was desired, and the installed program cannot be
	// one. Processes of one user wait for those of another.
	SingleUser bool `json:"singleUser,omitempty"`
}

// mebibyte is the unit of CUDA's memory limits.
const mebibyte = 1 << 20

var (
	// fileName matches an ID: it is a directory beside those of the package.
	fileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	// uuid matches one entry of CUDA_VISIBLE_DEVICES.
	uuid = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_/-]*$`)
)

// Bounds of both in bytes. Patterns with such counts would take 0.2 MB of memory.
const maxFileName, maxUUID = 100, 128

func checkID(id string) error {
	if len(id) > maxFileName || !fileName.MatchString(id) || slices.Contains(reserved, id) {
		return fmt.Errorf("%q cannot be the name of an MPS control daemon", id)
	}
	return nil
}

// check refuses settings with which no control daemon can run.
func (d Daemon) check() error {
	if err := checkID(d.ID); err != nil {
		return err
	}
	if len(d.Devices) == 0 {
		return errors.New("it has no device")
	}
	for _, device := range d.Devices {
		if len(device) > maxUUID || !uuid.MatchString(device) {
			return fmt.Errorf("%q is no UUID of a GPU or MIG device", device)
		}
	}
	if d.ThreadPercentage < 0 || d.ThreadPercentage > 100 {
		return fmt.Errorf("clients cannot have %d %% of the multiprocessors: at most 100", d.ThreadPercentage)
	}
	if len(d.MemoryBytes) > len(d.Devices) {
		return fmt.Errorf("it has memory limits for %d devices and serves %d", len(d.MemoryBytes), len(d.Devices))
	}
	for i, limit := range d.MemoryBytes {
		if limit > 0 && limit < mebibyte {
			return fmt.Errorf("the memory limit of %s is %d bytes: the least is %d (1Mi)", d.Devices[i], limit, mebibyte)
		}
	}
	return nil
}

func (d Daemon) equal(other Daemon) bool { return equality.Semantic.DeepEqual(d, other) }

func (s Status) equal(other Status) bool { return equality.Semantic.DeepEqual(s, other) }
