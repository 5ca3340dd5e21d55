package journal

import "fmt"

// Corrupt says that a file of the journal cannot be used. The claim counts as one never
// seen; that is all that happens. Of a Newer one, it says that the claim is another
// version's, which needs the file.
type Corrupt struct {
	ClaimUID string // from the file's name; empty when that is no UID
	Path     string
	Detail   string // the end of a sentence whose subject is the file
	Newer    bool   // written by a newer plugin: sound, and left alone
	Known    bool   // List has told of it before
	// Record is what a Newer one says in the fields that every version keeps.
	Record Record
}

// Error says what was found and what happens now.
func (c *Corrupt) Error() string {
	text := fmt.Sprintf("the journal file %s %s; ", c.Path, c.Detail)
	switch {
	case c.Newer:
		return text + "it and its claim are left alone: install that version again, or remove the file if nothing of the claim is left, as after a reboot; until then no other claim gets its devices"
	case c.ClaimUID == "":
		return text + "it is not used"
	}
	return text + fmt.Sprintf("it is not used, and claim %s will be prepared again from what is found on the node", c.ClaimUID)
}

// fault is what the decoder knows of a bad file: not yet which it was.
type fault struct {
	detail string
	newer  bool
}

func faultf(format string, args ...any) *fault {
	return &fault{detail: fmt.Errorf(format, args...).Error()}
}
