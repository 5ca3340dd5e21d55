package sandbox

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestUnescape(t *testing.T) {
	if got := unescape(`/a\040b\134c`); got != `/a b\c` {
		t.Errorf("got %q", got)
	}
}

func TestMountPointsAreThoseBelowADirectoryDeepestFirst(t *testing.T) {
	points, err := mountPoints("/proc")
	if err != nil {
		t.Fatal(err)
	}
	if len(points) == 0 || points[len(points)-1] != "/proc" {
		t.Errorf("/proc is not the last of %v", points)
	}
	points, err = mountPoints("/pro")
	if err != nil || len(points) != 0 {
		t.Errorf("a prefix of a name counts as a directory above it: %v, %v", points, err)
	}
}

func TestRemoveTreeRemovesChildrenFirst(t *testing.T) {
	group := filepath.Join(t.TempDir(), "mica")
	if err := os.MkdirAll(filepath.Join(group, "kubepods", "pod1"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := removeTree(group); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(group); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("the group: %v", err)
		}
	}
}

func TestRemoveAllBut(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mica")
	for _, name := range []string{"logs/pods", "etcd/member"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeAllBut(dir, []string{"logs"}); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "logs" {
		t.Errorf("left %v, %v", entries, err)
	}
	for range 2 {
		if err := removeAllBut(dir, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory: %v", err)
	}
}

func TestInitRefusesToBeAnyProcessButTheFirst(t *testing.T) {
	if _, err := Init([]string{"/bin/true"}, nil); err == nil {
		t.Error("it ran")
	}
}
