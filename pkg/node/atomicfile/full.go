package atomicfile

import (
	"errors"
	"syscall"
)

// IsFull reports whether a write failed for lack of space, inodes or quota.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
