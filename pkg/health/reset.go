package health

import (
	"slices"
	"time"
)

// MaxResets bounds attempts to reset a GPU for its present faults.
const MaxResets = 5

// resetPause is the pause after the first attempt. It doubles with each.
const resetPause = time.Minute

// Resets are the attempts to reset a GPU since it last had no fault.
type Resets struct {
	Tried int `json:"tried,omitempty"`
	// Last is when the last attempt began.
	Last time.Time `json:"last,omitzero"`
	// Persistent: an attempt disabled the persistence mode, which must be enabled again.
	Persistent bool `json:"persistent,omitempty"`
}

// Again is the pause between the last attempt and the next; false after MaxResets.
func (r Resets) Again() (pause time.Duration, more bool) {
	if r.Tried == 0 {
		return 0, true
	}
	return resetPause << (r.Tried - 1), r.Tried < MaxResets
}

// AsksForReset reports whether a reset of the GPU, and nothing less, ends its faults: by the driver's
// action, or by the table for errors that the driver does not judge.
func (r Record) AsksForReset() bool {
	if r.Reach != Answers || slices.ContainsFunc(r.Faults, func(f Fault) bool { return f.Severity == Dead }) {
		return false
	}
	switch r.Action {
	case ActionReset, ActionDrainAndReset:
		return true
	case ActionUnknown, ActionNone:
		return slices.ContainsFunc(r.Faults, func(f Fault) bool { return f.Unconfirmed && f.Severity == Drain })
	}
	return false
}

// ResetDue reports whether to reset the GPU now, given the conditions for which that is allowed.
func (r Record) ResetDue(allowed ConditionSet, now time.Time) bool {
	pause, more := r.Resets.Again()
	return more && now.Sub(r.Resets.Last) >= pause && r.AsksForReset() &&
		slices.ContainsFunc(r.Faults, func(f Fault) bool { return f.Severity == Drain && allowed[f.Condition] })
}
