package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// noteTime is how long a device reports errors that were not its own.
const noteTime = 10 * time.Minute

// causeTime is how long an error can be the cause of a later action. The driver refreshes the action
// in a work item after the error (gpuRefreshRecoveryAction in gpu.c of
// NVIDIA/open-gpu-kernel-modules). The time also covers a lost event: the GPU is polled within a
// minute.
const causeTime = 90 * time.Second

// maxNotes bounds the notes of a GPU; the oldest go first.
const maxNotes = 16

// Record is a GPU's health. The zero value is for a GPU without any report. It is kept over restarts,
// so that none clears a fault or makes it younger.
type Record struct {
	Reach  Reach  `json:"reach"`
	Action Action `json:"action"`
	// Faults have at most one per condition and place, in the order of both.
	Faults []Fault `json:"faults,omitempty"`
	Notes  []Note  `json:"notes,omitempty"`
	// Suspect is an error for which the driver has not required an action so far, without advice in its
	// words; zero without one.
	Suspect Fault  `json:"suspect,omitzero"`
	Resets  Resets `json:"resets,omitzero"`
}

// Rules say when a fault is over.
type Rules struct {
	// Quiet is how long the cause of a fault must be absent.
	Quiet time.Duration
}

// Next returns the record after a judgement. It does not change r.
func (r Record) Next(facts Facts, rules Rules, now time.Time) Record {
	next := Record{Reach: cmp.Or(facts.Reach, r.Reach), Action: r.Action, Faults: slices.Clone(r.Faults), Notes: slices.Clone(r.Notes), Suspect: r.Suspect, Resets: r.Resets}
	if now.Sub(next.Suspect.Since) >= causeTime {
		next.Suspect = Fault{}
	}
	switch facts.Reach {
	case Answers:
		next.Action = facts.Level.Action
	case Gone, Silent:
		next.Action = ActionUnknown
	}
	if facts.Restored {
		next.restore(now)
	}
	for _, event := range facts.Events {
		next.judge(event, facts.Level, now)
	}
	next.look(facts, now)
	next.Faults = slices.DeleteFunc(next.Faults, func(f Fault) bool {
		if f.Unconfirmed {
			return f.Last.Before(facts.Repaired)
		}
		return facts.Reach == Answers && now.Sub(f.Last) >= rules.Quiet
	})
	if len(next.Faults) == 0 {
		next.Resets = Resets{Persistent: r.Resets.Persistent}
	}
	next.Notes = slices.DeleteFunc(next.Notes, func(n Note) bool { return now.Sub(n.At) >= noteTime })
	if excess := len(next.Notes) - maxNotes; excess > 0 {
		next.Notes = next.Notes[excess:]
	}
	slices.SortFunc(next.Faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Condition, b.Condition), cmp.Compare(a.Place.Size, b.Place.Size), cmp.Compare(a.Place.Start, b.Place.Start), cmp.Compare(a.Place.ProfileID, b.Place.ProfileID))
	})
	return next
}

// restore ends unconfirmed faults after the quiet time.
func (r *Record) restore(now time.Time) {
	for i, fault := range r.Faults {
		if fault.Unconfirmed {
			r.Faults[i].Unconfirmed, r.Faults[i].Last = false, now
		}
	}
}

// judge decides the meaning of an event: by the driver's action if that is conclusive, else by the
// table.
func (r *Record) judge(event Event, level Level, now time.Time) {
	class, fault := event.fault()
	advice, own := classes[class].advice, class != Application && class != Informative
	switch {
	case r.Action.Asks() && own:
		// Actions concern the entire GPU.
		fault.Place = gpu.Placement{}
		fault.Severity, advice = actions[r.Action].severity, actions[r.Action].advice
	case r.Action == ActionNone && own && level.judges(event):
		r.suspect(fault, now)
		if fault.Severity > OK {
			advice = "the driver asks for no action"
		}
		fault.Severity = OK
	default:
		fault.Unconfirmed = true
	}
	fault.Words += "; " + advice
	if fault.Severity == OK {
		r.note(Note{Place: event.Place, Words: fault.Words, At: now})
		return
	}
	r.add(fault, now)
}

// suspect stores the first XID that an action may follow.
func (r *Record) suspect(fault Fault, now time.Time) {
	if fault.Condition == XID && r.Suspect.Since.IsZero() {
		fault.Since = now
		r.Suspect = fault
	}
}

// note replaces an equal note.
func (r *Record) note(note Note) {
	r.Notes = slices.DeleteFunc(r.Notes, func(n Note) bool { return n.Words == note.Words && n.Place == note.Place })
	r.Notes = append(r.Notes, note)
}

// look judges how the GPU answered.
func (r *Record) look(facts Facts, now time.Time) {
	switch facts.Reach {
	case Gone:
		words := "the GPU is lost; look for messages of NVRM in the kernel's log, reset or replace the GPU, or reboot the node"
		if facts.Why != "" {
			words = fmt.Sprintf("the GPU is lost (%s); look for messages of NVRM in the kernel's log, reset or replace the GPU, or reboot the node", facts.Why)
		}
		r.add(Fault{Condition: Lost, Severity: Dead, Words: words}, now)
	case Silent:
		r.add(Fault{Condition: Unresponsive, Severity: Dead, Words: "calls of NVML about the GPU do not return; reset the GPU or reboot the node"}, now)
	case Answers:
		r.level(facts.Level, now)
	}
}

func (r *Record) level(level Level, now time.Time) {
	switch {
	case level.RemapFailed:
		r.add(Fault{Condition: Memory, Value: "row-remap-failed", Severity: Drain, Words: "the GPU has no spare row left for a worn one of its memory; replace the GPU"}, now)
	case level.RemapPending:
		r.add(Fault{Condition: Memory, Value: "row-remap-pending", Severity: Degraded, Words: "the next reset of the GPU replaces worn rows of its memory; reset it when no claim has it"}, now)
	}
	r.fabric(level.Fabric, now)
	if !level.Action.Asks() {
		return
	}
	asked := actions[level.Action]
	caused := false
	for i, f := range r.Faults {
		if f.Condition == XID {
			// The action confirms its cause, and decides its severity.
			caused = true
			r.Faults[i].Last, r.Faults[i].Severity, r.Faults[i].Unconfirmed = now, max(f.Severity, asked.severity), false
		}
	}
	switch cause := r.Suspect; {
	case caused:
	case !cause.Since.IsZero():
		r.Notes = slices.DeleteFunc(r.Notes, func(n Note) bool { return strings.HasPrefix(n.Words, cause.Words+"; ") })
		cause.Place, cause.Severity, cause.Words = gpu.Placement{}, asked.severity, cause.Words+"; "+asked.advice
		r.add(cause, now)
	default:
		r.add(Fault{Condition: Recovery, Value: level.Action.String(), Severity: asked.severity, Words: fmt.Sprintf("the driver asks for the recovery action %s; %s", level.Action, asked.advice)}, now)
	}
}

func (r *Record) fabric(fabric FabricHealth, now time.Time) {
	reasons := ""
	if fabric.Reasons != "" {
		reasons = " (" + fabric.Reasons + ")"
	}
	switch fabric.Summary {
	case FabricUnhealthy:
		r.add(Fault{Condition: Fabric, Value: "unhealthy", Severity: Drain, Words: fmt.Sprintf("the GPU's NVLink fabric is unhealthy%s; look at the fabric manager's log, and reset the GPU", reasons)}, now)
	case FabricLimited:
		r.add(Fault{Condition: Fabric, Value: "limited-capacity", Severity: Degraded, Words: fmt.Sprintf("the GPU's NVLink fabric has less bandwidth than it should have%s; look at the fabric manager's log", reasons)}, now)
	}
}

// add stores a new or continuing fault. The first cause is kept; it gets worse but not better, and a
// milder one neither ends nor prolongs it. Of two unconfirmed faults the later counts, because a
// repair must be later than both.
func (r *Record) add(fault Fault, now time.Time) {
	fault.Since, fault.Last = now, now
	for i, known := range r.Faults {
		if !known.same(fault) {
			continue
		}
		// There is one action at a time.
		if fault.Severity > known.Severity || fault.Condition == Recovery {
			fault.Since = known.Since
			r.Faults[i] = fault
			return
		}
		if fault.Severity == known.Severity || fault.Unconfirmed && known.Unconfirmed {
			// An error that recurs after a reset is not over.
			r.Faults[i].Last, r.Faults[i].Unconfirmed = now, fault.Unconfirmed
		}
		return
	}
	r.Faults = append(r.Faults, fault)
}

// Of is the health of one shape of the GPU.
func (r Record) Of(shape gpu.Shape) (severity Severity, words []string) {
	for _, fault := range r.Faults {
		if fault.Hits(shape) {
			severity = max(severity, fault.Severity)
			words = append(words, fault.Words)
		}
	}
	for _, note := range r.Notes {
		if note.Place.Overlaps(shape.Form().Placement) {
			words = append(words, note.Words)
		}
	}
	return severity, words
}

// Like finds the record's fault of the same condition and place.
func (r Record) Like(fault Fault) (Fault, bool) {
	for _, known := range r.Faults {
		if known.same(fault) {
			return known, true
		}
	}
	return Fault{}, false
}

// Merge adds another process's record. For a common fault, the earlier start and the later end count.
// A fault of the other alone is adopted if no Level would report it and it is later than its entry in
// known, the faults that this process has had; otherwise this process has ended it.
func (r Record) Merge(other, known Record) Record {
	r.Faults = slices.Clone(r.Faults)
	for _, theirs := range other.Faults {
		i := slices.IndexFunc(r.Faults, theirs.same)
		if i < 0 {
			if had, ended := known.Like(theirs); theirs.Unconfirmed && (!ended || theirs.Last.After(had.Last)) {
				r.Faults = append(r.Faults, theirs)
			}
			continue
		}
		ours := &r.Faults[i]
		if theirs.Since.Before(ours.Since) && !theirs.Last.Before(ours.Since) {
			ours.Since = theirs.Since
		}
		if theirs.Severity == ours.Severity && theirs.Last.After(ours.Last) {
			ours.Last, ours.Unconfirmed = theirs.Last, theirs.Unconfirmed
		}
	}
	return r
}

// Known adds a record's faults to those that a process has had.
func (r Record) Known(record Record) Record {
	r.Faults = slices.DeleteFunc(slices.Clone(r.Faults), func(f Fault) bool { return slices.ContainsFunc(record.Faults, f.same) })
	r.Faults = append(r.Faults, record.Faults...)
	return r
}
