package mps

import (
	"errors"
	"fmt"
	"io/fs"
)

// State is how far a daemon has come.
type State string

const (
	// Starting: clients cannot connect yet, or not any more.
	Starting State = "starting"
	// Ready: clients can connect.
	Ready State = "ready"
	// Failed: it was tried several times, and is tried again from time to time.
	Failed State = "failed"
	// Stopping: nobody wants it any more.
	Stopping State = "stopping"
)

// Status is how a daemon is. Only the supervisor writes it.
type Status struct {
	// Daemon is what the status is of. It has no more than an ID when what is
	// wanted cannot be read.
	Daemon Daemon `json:"daemon"`
	State  State  `json:"state"`
	// Reason says why it is not ready, in a sentence.
	Reason string `json:"reason,omitempty"`
	// Restarts is how often clients have lost it: it was ready, and ended without
	// having been told to.
	Restarts int `json:"restarts,omitempty"`
	// SingleUser: the installed daemon cannot serve processes of several users at
	// once, as it was to, so that those of one wait for those of another.
	SingleUser bool `json:"singleUser,omitempty"`
}

// readStatus returns nil where there is none. A status that cannot be read is none:
// the supervisor writes it anew.
func (r root) readStatus(id string) (*Status, error) {
	var status Status
	// An unknown field of a newer supervisor is no reason to misunderstand the others.
	err := read(r.status(id), &status, false)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errDamaged) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the status of MPS control daemon %s: %w", id, err)
	}
	return &status, nil
}

// readWish returns nil where none is wanted.
func (r root) readWish(id string) (*Daemon, error) {
	var wish Daemon
	err := read(r.wish(id), &wish, true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = wish.check()
	}
	if err == nil && wish.ID != id {
		err = fmt.Errorf("%w: %s is about %s", errDamaged, r.wish(id), wish.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("read what is wanted of MPS control daemon %s: %w", id, err)
	}
	return &wish, nil
}

func (s Status) same(other Status) bool {
	return s.Daemon.equal(other.Daemon) && s.State == other.State && s.Reason == other.Reason &&
		s.Restarts == other.Restarts && s.SingleUser == other.SingleUser
}
