// Package atomicfile replaces files atomically: readers see the old content or the new. It never
// syncs. Its files describe what ends with the kernel, so the page cache suffices, and a sync
// would make every pod wait for the node's disk.
package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// Write replaces path, with this mode whatever the umask is. draft is a path in the same file
// system that no other process writes; a killed process leaves it. On failure, for example on a
// full disk, the draft is removed and path is unchanged.
func Write(path, draft string, content io.Reader, mode fs.FileMode) error {
	file, err := os.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	err = errors.Join(err, file.Chmod(mode), file.Close())
	if err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(draft))
	}
	return nil
}
