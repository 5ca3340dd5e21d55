// Package usage knows how busy devices are that workloads hold: it asks the plugins' metrics,
// and gives a shared device to those who share it by their parts. It serves what plugins say, too, for
// people who ask of all nodes. It never touches a GPU, and
// says nothing where it does not know.
//
// A workload's devices are those that the claims of its pods hold, once each however many pods
// share a claim, and each share where claims of it hold several of one device. Pods that are on
// no node yet hold nothing that could be busy. The devices of pods of which nothing has started
// are idle, and nobody is asked for them: kubelet attaches volumes before the plugin hears of the
// claims.
//
// Of a device that a claim holds alone, a GPU or a partition, all is the claim's: it has weight 1.
// Nobody can tell which of those who share a device makes it busy, so that of a share
//
//   - utilization is the device's, with the weight of the share's part of the device's time:
//     shares of its shares where time is sliced, cores of its cores under MPS;
//   - memory is the device's used memory, divided among all claims that hold a share by their
//     parts of its memory, and relative to the share's own memory, 1 at most; its weight is that
//     part.
//
// A device that counts no memory for its shares divides it as it does its time, and the other
// way round.
package usage

import (
	"errors"
	"time"
)

// ErrUntold is in the error of a device that never reports a figure, however long one waits.
var ErrUntold = errors.New("does not tell")

// Reading is how busy a device was.
type Reading struct {
	// Utilization is the part of the seconds before At, of which the plugin says how many, in
	// which the device ran something, 0 to 1; nil where the device does not tell.
	Utilization *float64
	// MemoryUsed and MemoryTotal are bytes; nil where the device does not tell.
	MemoryUsed, MemoryTotal *float64
	// At is when the plugin sampled it.
	At time.Time
}

// Usage is how busy the devices of a workload are.
type Usage struct {
	// Utilization and Memory are means over the workload's devices, each device with the weight
	// of the part that the workload holds of it.
	Utilization, Memory Mean
	// Devices counts them, each share for itself. Without any, both means are 0 without an error.
	Devices int
}

// Mean is one figure of a workload's devices.
type Mean struct {
	// Value is 0 to 1, and nothing where there is an error.
	Value float64
	// Err is a sentence that names a device that does not tell: a partition tells no utilization
	// on many boards, and tells its memory on all.
	Err error
}
