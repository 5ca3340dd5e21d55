package prepare

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/mica-gpu/mica/test/fixture"
)

// A pod can end on a node whose disk is full, and gives its partition back. A pod that comes
// is told why it waits.
func TestAFullDisk(t *testing.T) {
	r := newMIGRigOf(t, 1)
	smallDisk(t, r.dir)
	p, before := r.startMIG(t, nil), r.instances()
	going, coming := r.allocated("going", small0), r.allocated("coming", small1)
	prepare(t, p, going)
	space := fill(t, r.dir)
	if err := p.Unprepare(within(t), going.UID); err != nil {
		t.Error(err)
	}
	r.expectMIG(t, p, before)
	fill(t, r.dir) // with what the record and the CDI file have left
	_, err := p.Prepare(within(t), coming)
	fixture.Sentence(t, err, "claim default/coming", "no space left on device")
	r.expectMIG(t, p, before)
	space()
	prepare(t, p, coming)
	unprepare(t, p, coming)
	r.expectMIG(t, p, before)
}

// smallDisk mounts one that fill soon fills.
func smallDisk(t *testing.T, dir string) {
	t.Helper()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=64k,nr_inodes=40"); err != nil {
		t.Skipf("mounting is not allowed here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// fill leaves neither a byte nor an inode, until it is undone.
func fill(t *testing.T, dir string) (undo func()) {
	t.Helper()
	var made []string
	for i := 0; ; i++ {
		path := filepath.Join(dir, fmt.Sprintf("%p-%d", &made, i))
		_ = os.WriteFile(path, make([]byte, 4096), 0o600) // what cannot be written takes an inode
		if _, err := os.Lstat(path); err != nil {
			break
		}
		made = append(made, path)
	}
	if err := os.WriteFile(filepath.Join(dir, "one-more"), []byte{1}, 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	return func() {
		for _, path := range made {
			if err := os.Remove(path); err != nil {
				t.Error(err)
			}
		}
	}
}
