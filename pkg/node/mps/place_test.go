package mps

import (
	"os"
	"testing"

	"github.com/mica-gpu/mica/test/fixture"
)

func TestSharedMemoryIsTheNodes(t *testing.T) {
	d := NewDirectory(t.TempDir())
	fixture.Sentence(t, CheckShm(d.Path(), t.TempDir()), "is not the directory "+d.root.shm(), "mount it there")
	if err := os.Mkdir(d.root.shm(), 0o700); err != nil {
		t.Fatal(err)
	}
	fixture.Sentence(t, CheckShm(d.Path(), t.TempDir()), "is not the directory")
	fixture.Sentence(t, CheckShm(d.Path(), d.Path()+"/missing"), "look at the shared memory")
	if err := CheckShm(d.Path(), d.root.shm()); err != nil {
		t.Error(err)
	}
}

func TestWhatOutlivesAReboot(t *testing.T) {
	for path, want := range map[string]bool{"/proc": true, "/dev/shm": false} {
		if stays, err := outlivesReboot(path); err != nil || stays != want {
			t.Errorf("%s: %v, %v", path, stays, err)
		}
	}
	if _, err := outlivesReboot(t.TempDir() + "/missing"); err == nil {
		t.Error("a missing directory has a file system")
	}
}
