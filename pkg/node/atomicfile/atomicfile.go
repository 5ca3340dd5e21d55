// Package atomicfile owns how files are replaced at once: who reads one sees the old content
// or the new. It never syncs. Its files have to outlive the process, which the page cache
// does, and not the kernel, after whose end nothing is left that they speak of; and a sync
// would make every pod wait for the node's disk.
package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// Write gives path the content and the mode, whatever the umask is. draft, a path in the same
// file system that nobody else writes, has the content until it is complete; a process that
// is killed meanwhile leaves it. On failure, as on a full disk, no draft is left and path is as
// it was.
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
