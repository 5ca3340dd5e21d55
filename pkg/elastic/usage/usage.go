// Package usage reports how busy the devices of workloads are. It scrapes the plugins' metrics, and
// divides the usage of a shared device among its shares. It never touches a GPU, and returns an error
// for what it does not know.
//
// A workload's devices are those that the claims of its pods hold: once each however many pods share a
// claim, and each share on its own. Pods without a node use nothing. Devices of pods that have not
// started are idle: kubelet attaches volumes before it calls the plugin.
//
// A device that one claim holds alone, a GPU or a partition, has weight 1. No metric says which share
// makes a device busy, so for a share
//
//   - utilization is the device's, weighted by the share's part of its time: shares of its shares
//     when time-sliced, cores of its cores under MPS;
//   - memory is the device's used memory, divided among all shares by their parts of its memory,
//     and relative to the share's own memory, at most 1. Its weight is that part.
//
// A device that counts no memory for its shares divides memory as it does time, and vice versa. If one
// of its shares takes nothing that is counted, all shares have equal parts.
package usage

import (
	"errors"
	"time"
)

// ErrNotReported is the error of a device that never reports a figure.
var ErrNotReported = errors.New("does not report")

// Reading is how busy a device was.
type Reading struct {
	// Utilization is the fraction of the seconds before At in which the device ran something, 0 to 1; nil
	// if the device does not report it.
	Utilization *float64 `json:"utilization,omitempty"`
	// MemoryUsed and MemoryTotal are in bytes; nil if the device does not report them.
	MemoryUsed  *float64 `json:"memoryUsedBytes,omitempty"`
	MemoryTotal *float64 `json:"memoryTotalBytes,omitempty"`
	// At is when the plugin sampled the device.
	At time.Time `json:"sampled"`
}

// Usage is how busy the devices of a workload are.
type Usage struct {
	// Utilization and Memory are means over the devices, weighted by the fraction of each that the
	// workload holds.
	Utilization, Memory Mean
	// Devices counts devices and shares. Without any, both means are 0 without an error.
	Devices int
}

// Mean is one figure of a workload's devices.
type Mean struct {
	// Value is 0 to 1; meaningless with an error.
	Value float64
	// Err names a device that does not report the figure. Partitions of many boards report no utilization;
	// all report memory.
	Err error
}
