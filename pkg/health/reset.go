package health

import (
	"slices"
	"time"
)

// MaxResets is how often it is tried to reset a GPU because of the faults that it has.
const MaxResets = 5

// resetPause is the pause after the first attempt. It doubles with each.
const resetPause = time.Minute

// Resets are the attempts to reset a GPU since it had no fault.
type Resets struct {
	Tried int `json:"tried,omitempty"`
	// Last is when the last attempt began.
	Last time.Time `json:"last,omitzero"`
	// Persistent tells that an attempt has disabled the persistence mode, which has to be
	// enabled again.
	Persistent bool `json:"persistent,omitempty"`
}

// Again is the pause between the last attempt and the next. There is none after MaxResets.
func (r Resets) Again() (pause time.Duration, more bool) {
	if r.Tried == 0 {
		return 0, true
	}
	return resetPause << (r.Tried - 1), r.Tried < MaxResets
}

// AsksForReset reports whether a reset of the GPU ends what is wrong with it, and nothing less does:
// the driver says so, or the table does for errors that the driver does not judge.
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

// ResetDue tells whether it is time to reset the GPU, which is allowed because of faults of some
// conditions.
func (r Record) ResetDue(allowed ConditionSet, now time.Time) bool {
	pause, more := r.Resets.Again()
	return more && now.Sub(r.Resets.Last) >= pause && r.AsksForReset() &&
		slices.ContainsFunc(r.Faults, func(f Fault) bool { return f.Severity == Drain && allowed[f.Condition] })
}
