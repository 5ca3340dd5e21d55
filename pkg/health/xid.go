package health

import (
	"fmt"
	"strconv"
)

// Class is the cause of an XID and its remedy.
type Class int

// Classes. The zero value is for an XID that the table does not list.
const (
	Unlisted Class = iota
	// Application is an error of the workload; the GPU continues.
	Application
	// Informative requires nothing, or follows another XID.
	Informative
	// NeedsReset ends with a reset of the GPU.
	NeedsReset
	// NeedsReboot ends with a reboot of the node at the earliest.
	NeedsReboot
)

// classes have the severity of a fault and the advice.
var classes = map[Class]struct {
	severity Severity
	advice   string
}{
	Unlisted:    {OK, "see NVIDIA's XID catalog"},
	Application: {OK, "the application has to be restarted; the GPU goes on"},
	Informative: {OK, "nothing has to be done"},
	NeedsReset:  {Drain, actions[ActionReset].advice},
	NeedsReboot: {Dead, actions[ActionReboot].advice},
}

// xid is an entry of the table.
type xid struct {
	class   Class
	meaning string
}

// xids are from NVIDIA's XID catalog (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors
// with the Xid Catalog", column "Immediate Action"): RESTART_APP is Application, IGNORE is
// Informative, RESET_GPU is NeedsReset. Where the catalog prescribes a workflow (48, 74,
// 144-150), the outcome that protects claims is taken. It only decides if the driver does not
// judge the XID, see Action and linkedSince.
var xids = map[uint64]xid{
	8:   {Application, "the GPU stopped processing"},
	11:  {Application, "invalid or corrupted push buffer stream"},
	13:  {Application, "exception in the graphics engine"},
	31:  {Application, "page fault in GPU memory"},
	32:  {Application, "invalid or corrupted push buffer stream"},
	37:  {Informative, "error in the driver's firmware"},
	38:  {Informative, "error in the driver's firmware"},
	39:  {Application, "error of a copy engine"},
	40:  {Application, "error of a copy engine"},
	41:  {Application, "error of a copy engine"},
	43:  {Informative, "the GPU stopped processing for one application"},
	44:  {Informative, "graphics engine fault at a context switch"},
	45:  {Informative, "clean-up after an earlier error"},
	46:  {NeedsReset, "the GPU stopped processing"},
	48:  {NeedsReset, "double-bit ECC error"},
	54:  {NeedsReboot, "a power cable is not connected"},
	60:  {Application, "exception of the security engine"},
	62:  {NeedsReset, "a micro-controller of the GPU halted"},
	63:  {Informative, "a row of memory will be remapped"},
	64:  {NeedsReset, "a row of memory could not be remapped"},
	66:  {Informative, "illegal access by the driver"},
	67:  {Informative, "illegal access by the driver"},
	68:  {Application, "exception of a video decoder"},
	69:  {Application, "error of the graphics engine's class"},
	70:  {Application, "error of a copy engine"},
	71:  {Application, "error of a copy engine"},
	72:  {Application, "error of a copy engine"},
	74:  {NeedsReset, "NVLink error"},
	75:  {Application, "error of a copy engine"},
	76:  {Application, "error of a copy engine"},
	77:  {Application, "error of a copy engine"},
	79:  {NeedsReboot, "the GPU has fallen off the bus"},
	80:  {Application, "corrupted data was sent to the GPU"},
	82:  {Application, "error of a JPEG engine"},
	83:  {Application, "exception of a video decoder"},
	84:  {Application, "exception of a video decoder"},
	85:  {Application, "error of a copy engine"},
	86:  {Application, "exception of the optical flow engine"},
	88:  {Application, "exception of a video decoder"},
	89:  {Application, "exception of a video decoder"},
	92:  {Informative, "high rate of single-bit ECC errors"},
	93:  {Informative, "the InfoROM's wear limit is reached"},
	94:  {Application, "contained memory error"},
	95:  {NeedsReset, "uncontained memory error"},
	96:  {Application, "exception of a video decoder"},
	97:  {Application, "exception of a video decoder"},
	98:  {Application, "exception of a video decoder"},
	99:  {Application, "error of a JPEG engine"},
	100: {Application, "error of a JPEG engine"},
	101: {Application, "error of a JPEG engine"},
	102: {Application, "error of a JPEG engine"},
	103: {Application, "error of a JPEG engine"},
	104: {Application, "error of a JPEG engine"},
	105: {Application, "error of a JPEG engine"},
	106: {Informative, "test message of the management bus"},
	107: {Informative, "test message of the management bus"},
	109: {NeedsReset, "timeout of a context switch"},
	110: {NeedsReset, "security fault"},
	119: {NeedsReset, "the GPU's system processor did not answer in time"},
	120: {NeedsReset, "error of the GPU's system processor"},
	121: {Informative, "corrected error of the link to the CPU"},
	126: {Application, "error of a copy engine"},
	127: {Application, "error of a copy engine"},
	128: {Application, "error of a copy engine"},
	129: {Application, "error of a copy engine"},
	130: {Application, "error of a copy engine"},
	131: {Application, "error of a copy engine"},
	132: {Application, "error of a copy engine"},
	133: {Application, "error of a copy engine"},
	134: {Application, "error of a copy engine"},
	135: {Application, "error of a copy engine"},
	136: {NeedsReset, "an NVLink could not be trained"},
	137: {Informative, "illegal access over NVLink, mostly by the application"},
	139: {Application, "exception of the optical flow engine"},
	140: {NeedsReset, "ECC error from which the GPU did not recover"},
	141: {Informative, "error of a fast path of CUDA"},
	143: {NeedsReset, "the GPU could not be initialised"},
	144: {NeedsReset, "NVLink error"},
	145: {NeedsReset, "NVLink error"},
	146: {NeedsReset, "NVLink error"},
	147: {NeedsReset, "NVLink error"},
	148: {NeedsReset, "NVLink error"},
	149: {NeedsReset, "NVLink error"},
	150: {NeedsReset, "NVLink error"},
	151: {NeedsReboot, "error at the rotation of a key"},
	152: {Informative, "error of the deep learning accelerator"},
	153: {Informative, "timeout of the deep learning accelerator"},
	154: {Informative, "the recovery action of the GPU has changed"},
	155: {NeedsReset, "NVLink is down"},
	156: {NeedsReset, "a resource of the GPU is retired"},
	157: {Informative, "a resource of the GPU could not be retired"},
	158: {NeedsReset, "fatal timeout"},
	160: {Informative, "a channel is retired"},
	161: {Informative, "a channel could not be retired"},
}

// linkedSince has the first release of the driver whose recovery action covers an XID, from the
// catalog's column "Xid 154 linkage", for XIDs that need a reset or a reboot. The column is empty for
// 46, 54, 119, 140 and 151: if the driver requires no action after one of these, it has not judged the
// XID. Every driver that reports 158 links it.
var linkedSince = map[uint64]int{
	48: 565, 62: 565, 64: 565, 74: 565, 79: 565, 95: 565, 109: 570, 110: 565, 120: 565, 136: 565, 143: 575,
	144: 565, 145: 565, 146: 565, 147: 565, 148: 565, 149: 565, 150: 565, 155: 565, 156: 565, 158: 565,
}

// judges reports whether the driver's recovery action decides the meaning of an event, even if it
// requires none. Events without a number belong to XIDs that are linked since the first release with
// an action.
func (l Level) judges(event Event) bool {
	if event.XID == 0 {
		return true
	}
	_, listed := xids[event.XID]
	since, linked := linkedSince[event.XID]
	return !listed || linked && l.Release >= since
}

// Incident is an event without a number. It is the value of taints.
type Incident string

// Incidents, after NVML's types of events.
const (
	DoubleBitECC     Incident = "double-bit-ecc"
	RetirementFailed Incident = "retirement-failed"
	NonFatalPoison   Incident = "non-fatal-poison"
	FatalPoison      Incident = "fatal-poison"
	Unavailable      Incident = "unavailable"
)

var incidents = map[Incident]struct {
	condition Condition
	xid
}{
	DoubleBitECC:     {Memory, xid{NeedsReset, "double-bit ECC error"}},
	RetirementFailed: {Memory, xid{NeedsReset, "worn memory could not be retired"}},
	NonFatalPoison:   {Memory, xid{Application, "an application has met poisoned memory"}},
	FatalPoison:      {Memory, xid{NeedsReset, "poisoned memory has spread beyond one application"}},
	Unavailable:      {Recovery, xid{NeedsReset, "the driver calls the GPU unavailable"}},
}

// fault is the table's meaning of an event, without times.
func (e Event) fault() (class Class, fault Fault) {
	known, found := xids[e.XID]
	fault = Fault{Condition: XID, Value: strconv.FormatUint(e.XID, 10), Place: e.Place, Words: fmt.Sprintf("XID %d", e.XID)}
	switch {
	case e.XID == 0:
		incident := incidents[e.Incident]
		known = incident.xid
		fault.Condition, fault.Value, fault.Words = incident.condition, string(e.Incident), known.meaning
	case found:
		fault.Words += ": " + known.meaning
	}
	fault.Severity = classes[known.class].severity
	return known.class, fault
}
