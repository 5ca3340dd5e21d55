package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path, draft := filepath.Join(dir, "file"), filepath.Join(dir, ".draft")
	if err := os.WriteFile(draft, []byte("the longer draft of a process that was killed"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"first", "new"} {
		if err := Write(path, draft, strings.NewReader(content), 0o666); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("got %q, %v, want %q", got, err, content)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o666 {
		t.Errorf("got %v, %v, want the mode without the umask", info.Mode(), err)
	}
	expectOnly(t, dir, "file")
}

func TestAFailureLeavesTheOldFile(t *testing.T) {
	broken := errors.New("the source broke")
	for name, write := range map[string]func(path, draft string) error{
		"the content breaks off": func(path, draft string) error {
			return Write(path, draft, io.MultiReader(strings.NewReader("ha"), iotest.ErrReader(broken)), 0o644)
		},
		"a directory is in the way": func(path, draft string) error {
			if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o755)); err != nil {
				return err
			}
			return Write(path, draft, strings.NewReader("new"), 0o644)
		},
		"there is no room for a draft": func(path, _ string) error {
			return Write(path, filepath.Join(path, "draft"), strings.NewReader("new"), 0o644)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := write(path, filepath.Join(dir, ".draft")); err == nil {
				t.Error("no error")
			}
			if got, err := os.ReadFile(path); string(got) != "old" && !isDirectory(path) {
				t.Errorf("got %q, %v", got, err)
			}
			expectOnly(t, dir, "file")
		})
	}
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&fs.ModeDir != 0
}

func expectOnly(t *testing.T, dir, name string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != name {
		t.Errorf("got %v, %v, want only %s", entries, err, name)
	}
}
