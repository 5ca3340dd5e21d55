package atomicfile

import (
	"errors"
	"syscall"
)

// IsFull reports whether a write failed for lack of space, inodes or quota. What is on such a disk can still be
// read and removed.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
