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
	// Inject delivers an event to every event set that is registered for it. After an XID
	// that NVIDIA links to a recovery action, the GPU asks for that action some time later.
	Inject(Event) error
	// Lose makes the GPU fall off the bus: calls on it answer GPU_IS_LOST.
	// It raises no XID; inject 79 first for what a driver logs.
	Lose(gpu int) error
	// Return brings a lost GPU back.
	Return(gpu int) error
	// Attach adds a GPU that is absent, as a hot-plug or the end of its initialisation does.
	Attach(gpu int) error
	// Detach takes a GPU from the driver, as sysfs's unbind does. It is an error if the GPU
	// is in use.
	Detach(gpu int) error
	// SetDriver installs, upgrades, removes, loads or unloads the NVIDIA driver. It is an
	// error if a kernel module would have to be unloaded that is in use. A module that is
	// loaded anew finds the GPUs as a reboot leaves them.
	SetDriver(Driver) error
	// SetCondition sets what the GPU says of its health, until it is set again or a reset ends
	// what a reset ends.
	SetCondition(gpu int, condition Condition) error
	// SetFabric says how far the fabric manager has come. It is an error on a machine
	// without NVSwitches.
	SetFabric(Fabric) error
	// SetLatency makes every call of a function take at least that long before
	// it does anything. AnyFunction stands for every function that has no latency
	// of its own. Zero removes the latency.
	SetLatency(function string, latency time.Duration) error
	// SetLatencyAfter makes the calls of a function that changes a GPU take that
	// long after they have changed it.
	SetLatencyAfter(function string, latency time.Duration) error
	// Stall lets no call that begins within that time return before its end, whatever GPU it
	// is about: NVML's calls take the lock of the driver, which it holds while it recovers
	// one GPU, or waits for one in vain (XID 119).
	Stall(duration time.Duration) error
	// Fail makes calls of a function return an error.
	Fail(Failure) error
	// Clear removes all latencies and failures, and ends a stall for calls that begin later.
	Clear() error
	// SetMIGMode asks for MIG to be enabled or disabled, as NVML would: on Ampere
	// the mode is pending until Reset. It is an error if the GPU is in use.
	SetMIGMode(gpu int, enabled bool) error
	// CreateInstance creates a GPU instance with one compute instance that takes
	// all of it, at the first free placement if start is nil. No client of
	// the machine has created it.
	CreateInstance(gpu int, profile string, start *int) (InstanceState, error)
	// DestroyInstance destroys a GPU instance with its compute instances.
	DestroyInstance(gpu, instance int) error
	// Occupy lets a process use a GPU instance, or the GPU as a whole if instance
	// is nil, or ends that use. What is in use cannot be destroyed or reset.
	Occupy(gpu int, instance *int, inUse bool) error
	// SetUse sets how much of a GPU instance, or of the GPU as a whole if instance is
	// nil, is used. It lasts until the instance goes, the GPU is reset or its MIG mode
	// is switched.
	SetUse(gpu int, instance *int, use Use) error
	// Reset resets a GPU: its instances go and the pending MIG mode is activated.
	Reset(gpu int) error
	// Reboot leaves every GPU as after a start of the machine: without instances,
	// processes and modes, but Ampere's pending MIG mode is activated. Clients
	// survive, as no real ones do, and find that all this has happened.
	Reboot() error
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

// Failure makes a function return an error instead of doing its work, or after
// having done it.
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
	// After lets a function that changes a GPU do its work first: the caller gets
	// an error although the work was done. Calls that fail by themselves do not count.
	After bool `json:"after,omitempty"`
}

// State is what a machine looks like at one moment.
type State struct {
	Machine           string         `json:"machine"`
	Driver            Driver         `json:"driver"`
	CUDADriverVersion string         `json:"cudaDriverVersion"`
	Fabric            Fabric         `json:"fabric,omitempty"` // empty without NVSwitches
	GPUs              []GPUState     `json:"gpus"`
	Sessions          int            `json:"sessions"`
	Latencies         []LatencyState `json:"latencies,omitempty"`
	Failures          []Failure      `json:"failures,omitempty"`
	// SlowCalls are the calls that a latency keeps waiting now.
	SlowCalls []SlowCall `json:"slowCalls,omitempty"`
	// Calls counts the calls since the machine was loaded.
	Calls Calls `json:"calls,omitempty"`
}

// Calls counts the calls of NVML functions by C name, over all clients. A call
// that was refused counts; nvmlErrorString, which asks no driver, does not.
type Calls map[string]int

// Since is what was called after the earlier count.
func (c Calls) Since(earlier Calls) Calls {
	since := Calls{}
	for function, count := range c {
		if more := count - earlier[function]; more > 0 {
			since[function] = more
		}
	}
	return since
}

// Total is the number of all calls.
func (c Calls) Total() int {
	total := 0
	for _, count := range c {
		total += count
	}
	return total
}

// GPUState is what one GPU looks like at one moment.
type GPUState struct {
	Index       int    `json:"index"`
	Minor       int    `json:"minor"`
	UUID        string `json:"uuid"`
	ProductName string `json:"productName"`
	PCIBusID    string `json:"pciBusID"`
	Lost        bool   `json:"lost"`
	Absent      bool   `json:"absent,omitempty"`
	ComputeMode string `json:"computeMode"`
	// Timeslice is "N/A" where it cannot be chosen.
	Timeslice       string `json:"timeslice"`
	PersistenceMode bool   `json:"persistenceMode"`
	MIGCapable      bool   `json:"migCapable"`
	MIGMode         string `json:"migMode"`
	PendingMIGMode  string `json:"pendingMIGMode"`
	// Condition is what SetCondition has set.
	Condition Condition `json:"condition,omitzero"`
	// InUse says that a process uses the GPU as a whole.
	InUse bool `json:"inUse,omitempty"`
	// Use is what SetUse has set of the GPU as a whole.
	Use UseState `json:"use,omitzero"`
	// Clients counts the processes that have a handle of the GPU from NVML.
	Clients int `json:"clients,omitempty"`
	// Processes are those with a context on the GPU or on a MIG device of it.
	Processes []ProcessState `json:"processes,omitempty"`
	// Instances are ordered by their ID.
	Instances []InstanceState `json:"instances,omitempty"`
}

// ProcessState is a context of a process.
type ProcessState struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`
	// Device is the UUID of the GPU or MIG device.
	Device string `json:"device"`
}

// InstanceState is what one GPU instance looks like at one moment.
type InstanceState struct {
	ID        int    `json:"id"`
	Profile   string `json:"profile"`
	ProfileID int    `json:"profileID"`
	// Start and Size are memory units.
	Start int  `json:"start"`
	Size  int  `json:"size"`
	InUse bool `json:"inUse,omitempty"`
	// Use is what SetUse has set.
	Use UseState `json:"use,omitzero"`
	// Capability is the minor of its /dev/nvidia-caps/nvidia-cap<minor>.
	Capability int `json:"capability"`
	// ComputeInstances are ordered by their ID.
	ComputeInstances []ComputeInstanceState `json:"computeInstances,omitempty"`
}

// ComputeInstanceState is what one compute instance, which is a MIG device,
// looks like at one moment.
type ComputeInstanceState struct {
	ID        int    `json:"id"`
	Profile   string `json:"profile"`
	ProfileID int    `json:"profileID"`
	// Start and Size are compute slices of the GPU instance.
	Start int    `json:"start"`
	Size  int    `json:"size"`
	UUID  string `json:"uuid"`
	// Index is that of the MIG device below its GPU.
	Index      int `json:"index"`
	Capability int `json:"capability"`
}

// SlowCall is a call that an injected latency keeps waiting.
type SlowCall struct {
	Function string `json:"function"`
	GPU      *int   `json:"gpu,omitempty"`
	// After says that the call has had its effect.
	After bool `json:"after,omitempty"`
}

// LatencyState is the latency added to a function.
type LatencyState struct {
	Function string        `json:"function"`
	Latency  time.Duration `json:"latency"`
	// After says that it comes after the function's effect.
	After bool `json:"after,omitempty"`
}
