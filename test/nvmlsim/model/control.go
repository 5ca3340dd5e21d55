package model

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// WholeGPU is the GPU or compute instance ID of an event that concerns the
// whole GPU, as NVML writes it.
const WholeGPU uint32 = 0xFFFFFFFF

// Control makes things happen to a simulated machine that on a real one only
// hardware and drivers do. Machine implements it in process and the simulator's
// command line over its socket. GPUs are named by their index on the machine,
// whatever a session can see of them.
type Control interface {
	// Inject delivers an event to every event set that is registered for it.
	Inject(Event) error
	// Lose makes the GPU fall off the bus: calls on it answer GPU_IS_LOST.
	// It raises no XID; inject 79 first for what a driver logs.
	Lose(gpu int) error
	// Return brings a lost GPU back.
	Return(gpu int) error
	// SetLatency makes every call of a function take at least that long. Zero
	// removes the latency.
	SetLatency(function string, latency time.Duration) error
	// Fail makes calls of a function return an error.
	Fail(Failure) error
	// Clear removes all latencies and failures.
	Clear() error
	// State describes the machine now.
	State() (State, error)
}

// Event is something that a driver would report about a GPU.
type Event struct {
	GPU int `json:"gpu"`
	// Type is one nvml.EventType* bit.
	Type uint64 `json:"type"`
	// Data is the XID for XID events and 0 for others.
	Data uint64 `json:"data"`
	// GPUInstanceID and ComputeInstanceID are WholeGPU for an event that is
	// not about one MIG instance.
	GPUInstanceID     uint32 `json:"gpuInstanceID"`
	ComputeInstanceID uint32 `json:"computeInstanceID"`
}

// XID is a critical XID error that concerns the whole GPU.
func XID(gpu int, xid uint64) Event {
	return Event{
		GPU:               gpu,
		Type:              nvml.EventTypeXidCriticalError,
		Data:              xid,
		GPUInstanceID:     WholeGPU,
		ComputeInstanceID: WholeGPU,
	}
}

// Failure makes a function return an error instead of doing its work.
type Failure struct {
	// Function is the C name. Without a version suffix it stands for all
	// versions of the function: nvmlDeviceGetPciInfo covers _v2 and _v3.
	Function string `json:"function"`
	// Return is what the function answers.
	Return nvml.Return `json:"return"`
	// Times is how many calls fail; 0 means every call until Clear.
	Times int `json:"times,omitempty"`
	// GPU restricts the failure to calls on one GPU.
	GPU *int `json:"gpu,omitempty"`
}

// State is what a machine looks like at one moment.
type State struct {
	Machine           string         `json:"machine"`
	DriverVersion     string         `json:"driverVersion"`
	CUDADriverVersion string         `json:"cudaDriverVersion"`
	GPUs              []GPUState     `json:"gpus"`
	Sessions          int            `json:"sessions"`
	Latencies         []LatencyState `json:"latencies,omitempty"`
	Failures          []Failure      `json:"failures,omitempty"`
}

// GPUState is what one GPU looks like at one moment.
type GPUState struct {
	Index           int    `json:"index"`
	Minor           int    `json:"minor"`
	UUID            string `json:"uuid"`
	ProductName     string `json:"productName"`
	PCIBusID        string `json:"pciBusID"`
	Lost            bool   `json:"lost"`
	ComputeMode     string `json:"computeMode"`
	PersistenceMode bool   `json:"persistenceMode"`
	MIGCapable      bool   `json:"migCapable"`
	MIGMode         string `json:"migMode"`
}

// LatencyState is the latency added to a function.
type LatencyState struct {
	Function string        `json:"function"`
	Latency  time.Duration `json:"latency"`
}
