package journal

import "fmt"

// Reason is the kind of fault found in a file; it is part of the name that the
// file gets in quarantine.
type Reason string

// What can be wrong with a file.
const (
	Empty       Reason = "empty"
	Truncated   Reason = "truncated"
	Garbage     Reason = "garbage"  // not a record at all
	Checksum    Reason = "checksum" // a record whose bytes have changed
	TooLarge    Reason = "too-large"
	WrongName   Reason = "wrong-name"   // not a claim's UID, or another claim's record
	NewerSchema Reason = "newer-schema" // written by a newer plugin: sound, and left where it is
	Invalid     Reason = "invalid"      // intact and impossible
	NotAFile    Reason = "not-a-file"   // a directory, link, pipe or device
	Unreadable  Reason = "unreadable"   // the disk gives an I/O error
)

// Corrupt says that a file of the journal could not be used. The claim counts as
// one never seen; that is all that happens. Of a NewerSchema, it says that the claim is
// another version's, which needs the file.
type Corrupt struct {
	ClaimUID      string // from the file's name; empty when that is no UID
	Path          string // where the file was
	Reason        Reason
	Detail        string // the end of a sentence whose subject is the file
	QuarantinedTo string // where the file is now; empty when it was not moved
	MoveError     error  // why it could not be moved
}

// Error says what was found and what happens now.
func (c *Corrupt) Error() string {
	text := fmt.Sprintf("the journal file %s %s; ", c.Path, c.Detail)
	if c.Reason == NewerSchema {
		return text + "it and its claim are left alone: install that version again, or remove the file if nothing of the claim is left, as after a reboot"
	}
	if c.QuarantinedTo != "" {
		text += fmt.Sprintf("it was moved to %s", c.QuarantinedTo)
	} else {
		text += fmt.Sprintf("it could not be moved aside (%v) and stays where it is", c.MoveError)
	}
	if c.ClaimUID == "" {
		return text + ", and is not used"
	}
	return text + fmt.Sprintf(", and claim %s will be prepared again from what is found on the node", c.ClaimUID)
}

// Unwrap returns why the file could not be moved aside, nil if it was.
func (c *Corrupt) Unwrap() error { return c.MoveError }

// fault is what the decoder knows of a bad file: not yet where it went.
type fault struct {
	reason Reason
	detail string
}

func faultf(reason Reason, format string, args ...any) *fault {
	return &fault{reason: reason, detail: fmt.Errorf(format, args...).Error()}
}
