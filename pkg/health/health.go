// Package health judges GPUs: it turns the driver's reports about a GPU into faults with place,
// severity and description. It owns the meaning of XIDs and decides when a fault is over. It has no
// clock, queries no hardware and writes no taint.
package health

import (
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// Condition is a kind of fault, by its name in GPUPolicies.
type Condition string

// Conditions.
const (
	// XID is an error that the driver reported by number.
	XID Condition = "xid"
	// Lost is a GPU that fell off the bus, or that the driver cannot read.
	Lost Condition = "gpu-lost"
	// Recovery is an action that the driver requires without a known cause, such as after an error while
	// no process listened.
	Recovery Condition = "recovery-action"
	// Memory is memory that is worn out or waits for repair.
	Memory Condition = "memory"
	// Fabric is about a GPU's NVLinks into NVSwitches.
	Fabric Condition = "fabric"
	// Unresponsive is a GPU for which an NVML call does not return.
	Unresponsive Condition = "unresponsive"
)

// ConditionSet is a set of conditions.
type ConditionSet map[Condition]bool

// Conditions lists all conditions.
var Conditions = []Condition{XID, Lost, Recovery, Memory, Fabric, Unresponsive}

// Severity is the effect of a fault on claims.
type Severity int

// Severities. The zero value is for a device without faults.
const (
	// OK is a device that works.
	OK Severity = iota
	// Degraded is a fault that lets work continue.
	Degraded
	// Drain is a fault that a reset of the GPU ends; the GPU gets no further claims.
	Drain
	// Dead is a fault that no reset ends: the node must reboot, or the GPU be replaced.
	Dead
)

var severities = map[Severity]string{OK: "ok", Degraded: "degraded", Drain: "drain", Dead: "dead"}

func (s Severity) String() string { return severities[s] }

// Action is the recovery action that the driver requires for a GPU: field 230 of NVML, in drivers
// from R565 on.
type Action int

// Actions, in an order of our own.
const (
	// ActionUnknown is the value of a driver without the field. It is no fault.
	ActionUnknown Action = iota
	ActionNone
	ActionReset
	ActionReboot
	ActionDrainP2P
	ActionDrainAndReset
	ActionRecoverIMEX
	ActionBusReset
	ActionSystemReboot
)

// actions have the value of a taint, the severity, and the operator's task.
var actions = map[Action]struct {
	name     string
	severity Severity
	advice   string
}{
	ActionUnknown:       {"unknown", OK, ""},
	ActionNone:          {"none", OK, ""},
	ActionReset:         {"gpu-reset", Drain, "end what uses the GPU and reset it"},
	ActionReboot:        {"node-reboot", Dead, "reboot the node"},
	ActionDrainP2P:      {"drain-p2p", Drain, "end what uses the GPU over NVLink; the driver then recovers it"},
	ActionDrainAndReset: {"drain-and-reset", Drain, "let the work that the GPU has end, then reset it"},
	ActionRecoverIMEX:   {"recover-imex-domain", Degraded, "restart the jobs of the IMEX domain"},
	ActionBusReset:      {"bus-reset", Drain, "end what uses the GPU and reset its PCIe slot"},
	ActionSystemReboot:  {"system-reboot", Dead, "reboot the machine, not only the virtual one"},
}

func (a Action) String() string { return actions[a].name }

// Asks reports whether the driver requires an action.
func (a Action) Asks() bool { return a > ActionNone }

// Level is a GPU's state when polled. Unlike an event it includes what happened while no process
// listened.
type Level struct {
	Action Action
	// Release is the driver's, such as 580, or 0 if unknown. It decides for which errors Action is
	// conclusive.
	Release int
	// RemapPending: the next reset replaces worn rows of memory. RemapFailed: no spare row is left.
	RemapPending, RemapFailed bool
	Fabric                    FabricHealth
}

// FabricHealth is the driver's report about a GPU's NVLinks into NVSwitches. The zero value is for a
// GPU without any, or a driver without the report. It is no fault.
type FabricHealth struct {
	Summary FabricSummary
	// Reasons are the driver's, separated by commas.
	Reasons string
}

// FabricSummary is how much of the fabric works.
type FabricSummary int

// Summaries.
const (
	FabricUnknown FabricSummary = iota
	FabricHealthy
	// FabricLimited works with reduced bandwidth.
	FabricLimited
	FabricUnhealthy
)

// Reach is whether a GPU answers.
type Reach int

// Reaches. The zero value is for a GPU that was not polled yet.
const (
	Unasked Reach = iota
	// Answers is a GPU whose Level was read.
	Answers
	// Gone is a GPU that the driver reports as lost, or cannot read.
	Gone
	// Silent is a GPU whose call has not returned.
	Silent
)

// Event is an event of a GPU.
type Event struct {
	// XID is its number, 0 for another Incident.
	XID uint64
	// Incident names an event without an XID.
	Incident Incident
	// Place is the affected partition, zero for the entire GPU.
	Place gpu.Placement
}

// Facts are the observations of a GPU since the last judgement.
type Facts struct {
	Reach Reach
	// Level is valid if Reach is Answers.
	Level Level
	// Why is why the GPU is Gone, in the driver's words.
	Why    string
	Events []Event
	// Restored: former faults may be over, because the GPU came back, its driver was reloaded, or the
	// machine booted.
	Restored bool
	// Repaired is when an administrator repaired the GPU, zero for never.
	Repaired time.Time
}

// Fault is a fault of a GPU.
type Fault struct {
	Condition Condition `json:"condition"`
	// Value distinguishes faults of one condition, such as an XID's number.
	Value string `json:"value,omitempty"`
	// Place is the partition that has it, zero for the entire GPU.
	Place    gpu.Placement `json:"place,omitzero"`
	Severity Severity      `json:"severity"`
	// Words are a sentence without a full stop: what happened, and what to do.
	Words string `json:"words"`
	// Since is when the fault was first observed, Last when it was last observed.
	Since time.Time `json:"since"`
	Last  time.Time `json:"last"`
	// Unconfirmed: no Level confirms the fault. It ends after the GPU was Restored or Repaired.
	Unconfirmed bool `json:"unconfirmed,omitempty"`
}

// Hits reports whether the fault overlaps a shape.
func (f Fault) Hits(shape gpu.Shape) bool { return f.Place.Overlaps(shape.Form().Placement) }

// same reports whether both are the same fault, perhaps at different times. A GPU or partition has one
// fault per condition: further errors are more often consequences than causes.
func (f Fault) same(o Fault) bool { return f.Condition == o.Condition && f.Place == o.Place }

// Note is about the work on a GPU and not the GPU, such as an error of the application.
type Note struct {
	Place gpu.Placement `json:"place,omitzero"`
	Words string        `json:"words"`
	At    time.Time     `json:"at"`
}
