package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	quarantineDir = "quarantine"
	// quarantineMax bounds the files kept; the oldest go first.
	quarantineMax = 32
)

// quarantineName matches <file>.<reason>-<n>, where n grows with every file.
var quarantineName = regexp.MustCompile(`\.[a-z-]+-([0-9]{1,18})$`)

// quarantine moves a file that was found bad out of the way and says so. It looks
// again first, under the guard: since the first look, another process may have
// put a good record in its place, which must not be lost.
func (j *Journal) quarantine(name string) (listed, error) {
	release, guardErr := j.guard.exclusive()
	if guardErr == nil {
		defer release()
	}
	found, bad, err := j.load(name, listed{})
	if err != nil || bad == nil {
		return found, err
	}
	found.corrupt = j.reported(name, bad)
	if bad.reason == NewerSchema { // which was put there since
		return found, nil
	}
	if guardErr != nil {
		found.corrupt.MoveError = guardErr
		return found, nil
	}
	found.corrupt.QuarantinedTo, found.corrupt.MoveError = j.moveAside(name, bad.reason)
	if errors.Is(found.corrupt.MoveError, fs.ErrNotExist) {
		return listed{}, found.corrupt.MoveError // deleted meanwhile
	}
	return found, nil
}

// reported is what is told of a bad file.
func (j *Journal) reported(name string, bad *fault) *Corrupt {
	corrupt := &Corrupt{Path: j.path(name), Reason: bad.reason, Detail: bad.detail}
	if uid := strings.TrimSuffix(name, extension); validUID(uid) {
		corrupt.ClaimUID = uid
	}
	return corrupt
}

// moveAside returns the path that the file has now. It is called under the guard.
func (j *Journal) moveAside(name string, reason Reason) (string, error) {
	dir := j.path(quarantineDir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	kept, err := quarantined(dir)
	if err != nil {
		return "", err
	}
	next := 1
	if len(kept) > 0 {
		next = kept[len(kept)-1].number + 1
	}
	// A file with the longest name that there can be has to get a suffix, too.
	stem := name[:min(len(name), 128)]
	to := filepath.Join(dir, fmt.Sprintf("%s.%s-%d", stem, reason, next))
	if err := os.Rename(j.path(name), to); err != nil {
		return "", err
	}
	// That an old file stays is no reason to say that the new one did not move.
	for len(kept) >= quarantineMax {
		_ = os.RemoveAll(filepath.Join(dir, kept[0].name))
		kept = kept[1:]
	}
	return to, nil
}

type quarantinedFile struct {
	name   string
	number int
}

// quarantined returns the files in quarantine, oldest first.
func quarantined(dir string) ([]quarantinedFile, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []quarantinedFile
	for _, entry := range entries {
		match := quarantineName.FindStringSubmatch(entry.Name())
		if match == nil {
			continue // not put there by us
		}
		number, err := strconv.Atoi(match[1])
		if err != nil {
			continue
		}
		files = append(files, quarantinedFile{entry.Name(), number})
	}
	slices.SortFunc(files, func(a, b quarantinedFile) int { return a.number - b.number })
	return files, nil
}
