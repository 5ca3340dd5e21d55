// Package health judges GPUs: what the driver says of one goes in, its faults come out, with
// their place, how bad they are, and words. It owns what XIDs mean and when a fault is over.
// It has no clock, asks no hardware and writes no taint.
package health

import (
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// Condition is a kind of fault. GPUPolicies name it.
type Condition string

// Conditions.
const (
	// XID is an error that the driver has reported by its number.
	XID Condition = "xid"
	// Lost is a GPU that fell off the bus, or that the driver cannot read.
	Lost Condition = "gpu-lost"
	// Recovery is an action that the driver asks for without a known cause, as after an
	// error that nobody listened to.
	Recovery Condition = "recovery-action"
	// Memory is memory that is worn out or waits for its repair.
	Memory Condition = "memory"
	// Fabric is the NVLinks of a GPU into NVSwitches.
	Fabric Condition = "fabric"
	// Unresponsive is a GPU about which a call of NVML does not return.
	Unresponsive Condition = "unresponsive"
)

// ConditionSet are some of them.
type ConditionSet map[Condition]bool

// Conditions are all of them.
var Conditions = []Condition{XID, Lost, Recovery, Memory, Fabric, Unresponsive}

// Severity says what a fault means for claims.
type Severity int

// Severities. The zero value is that of a device without faults.
const (
	// OK is a device that works.
	OK Severity = iota
	// Degraded is a fault with which work can go on.
	Degraded
	// Drain is one that a reset of the GPU ends: it gets no further claims.
	Drain
	// Dead is one that no reset ends: the node has to reboot, or the GPU to be replaced.
	Dead
)

var severities = map[Severity]string{OK: "ok", Degraded: "degraded", Drain: "drain", Dead: "dead"}

func (s Severity) String() string { return severities[s] }

// Action is what the driver asks for before a GPU works as it should: field 230 of NVML, which
// drivers have from R565 on.
type Action int

// Actions, in an order of our own.
const (
	// ActionUnknown is that of a driver that does not say. It is no fault.
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

// actions have the value of a taint, how bad it is, and what an operator does.
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

// Asks tells that something has to be done.
func (a Action) Asks() bool { return a > ActionNone }

// Level is what a GPU says of itself whenever it is asked. Unlike an event it also tells of
// what happened while nobody listened.
type Level struct {
	Action Action
	// Release is that of the driver, such as 580, and 0 if it is not known. It decides for which
	// errors Action speaks.
	Release int
	// RemapPending tells that the next reset replaces worn rows of memory; RemapFailed that
	// there is no row left to replace one.
	RemapPending, RemapFailed bool
	Fabric                    FabricHealth
}

// FabricHealth is what the driver says of a GPU's NVLinks into NVSwitches. The zero value is that
// of a GPU without any, or of a driver that does not say. It is no fault.
type FabricHealth struct {
	Summary FabricSummary
	// Reasons are in the driver's words, separated by commas.
	Reasons string
}

// FabricSummary is how much of the fabric works.
type FabricSummary int

// Summaries.
const (
	FabricUnknown FabricSummary = iota
	FabricHealthy
	// FabricLimited works, with less bandwidth than it should have.
	FabricLimited
	FabricUnhealthy
)

// Reach is how a GPU answers.
type Reach int

// Reaches. The zero value is that of a GPU that was not asked yet.
const (
	Unasked Reach = iota
	// Answers is a GPU whose Level was read.
	Answers
	// Gone is a GPU that the driver calls lost, or cannot read.
	Gone
	// Silent is a GPU whose call has not returned.
	Silent
)

// Event is what the driver reported of a GPU.
type Event struct {
	// XID is its number, 0 for another Incident.
	XID uint64
	// Incident names an event that is no XID.
	Incident Incident
	// Place is the partition that it is about, zero for the entire GPU.
	Place gpu.Placement
}

// Facts are what was found out about a GPU since the last judgement.
type Facts struct {
	Reach Reach
	// Level counts where Reach is Answers.
	Level Level
	// Why says why the GPU is Gone, in the driver's words.
	Why    string
	Events []Event
	// Restored tells that what was wrong before can be over: the GPU came back, its driver was
	// loaded anew, or the machine has started.
	Restored bool
	// Repaired is when an administrator had repaired the GPU, zero for never.
	Repaired time.Time
}

// Fault is something wrong with a GPU.
type Fault struct {
	Condition Condition `json:"condition"`
	// Value tells faults of one condition apart, such as an XID's number.
	Value string `json:"value,omitempty"`
	// Place is the partition that has it, zero for the entire GPU.
	Place    gpu.Placement `json:"place,omitzero"`
	Severity Severity      `json:"severity"`
	// Words are a sentence without a full stop: what happened, and what to do.
	Words string `json:"words"`
	// Since is when it was first seen, Last when it was last seen to last.
	Since time.Time `json:"since"`
	Last  time.Time `json:"last"`
	// Unconfirmed tells that no level says whether it lasts: it ends after the GPU was Restored, or once an
	// administrator has Repaired it.
	Unconfirmed bool `json:"unconfirmed,omitempty"`
}

// Hits tells whether the fault is one of a shape's, too: it overlaps it.
func (f Fault) Hits(shape gpu.Shape) bool { return f.Place.Overlaps(shape.Form().Placement) }

// same tells whether it is the same fault, perhaps at another time. A GPU or partition has one
// of each condition: further errors are consequences more often than causes.
func (f Fault) same(o Fault) bool { return f.Condition == o.Condition && f.Place == o.Place }

// Note is something that concerns the work on a GPU and not the GPU, such as an error of the
// application.
type Note struct {
	Place gpu.Placement `json:"place,omitzero"`
	Words string        `json:"words"`
	At    time.Time     `json:"at"`
}
