package launch

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// CopyLogs copies a cluster's logs, for those who look when it is gone. Pods may
// end meanwhile: what has gone is left out.
func CopyLogs(from, to string) error {
	if err := os.RemoveAll(filepath.Join(to, "pods")); err != nil {
		return fmt.Errorf("removing the logs of earlier pods: %w", err)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("keeping the logs: %w", err)
	}
	var errs []error
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err == nil {
			err = copyEntry(path, filepath.Join(to, path[len(from):]), entry)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("keeping the logs: %w", err))
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

func copyEntry(from, to string, entry fs.DirEntry) error {
	if entry.IsDir() {
		return os.MkdirAll(to, 0o755)
	}
	if !entry.Type().IsRegular() {
		return nil
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}
