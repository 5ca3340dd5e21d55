package keeper

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mica-gpu/mica/test/cluster/internal/layout"
	"github.com/mica-gpu/mica/test/cluster/internal/sandbox"
)

func temporary(t *testing.T) layout.Dir {
	t.Helper()
	return layout.Dir(filepath.Join(t.TempDir(), "mica-keeper-test"))
}

func TestTheLockIsHeldOnce(t *testing.T) {
	dir := temporary(t)
	lock, err := Hold(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Hold(dir); !errors.Is(err, ErrHeld) {
		t.Errorf("a second holder gets %v", err)
	}
	if running, err := Running(dir); err != nil || !running {
		t.Errorf("running is %t, %v", running, err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if running, err := Running(dir); err != nil || running {
		t.Errorf("running is %t, %v after the release", running, err)
	}
}

func TestALockWhoseFileWasRemovedIsNotCurrent(t *testing.T) {
	dir := temporary(t)
	lock, err := Hold(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if !current(lock, dir.Lock()) {
		t.Error("the lock is not current while its file is there")
	}
	if err := os.Remove(dir.Lock()); err != nil {
		t.Fatal(err)
	}
	if current(lock, dir.Lock()) {
		t.Error("the lock is current without its file")
	}
}

func TestEndRemovesWhatADeadClusterLeft(t *testing.T) {
	dir := temporary(t)
	lock, err := Hold(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(string(dir), "failure"), []byte("reason\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	// A process ID that another process has now, here this test, is spared.
	other, err := markOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	other.started--
	if err := writeMark(dir.PID(), other); err != nil {
		t.Fatal(err)
	}
	if ended, err := End(dir); err != nil || !ended {
		t.Fatalf("got %t, %v", ended, err)
	}
	if _, err := os.Stat(string(dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory: %v", err)
	}
	if ended, err := End(dir); err != nil || ended {
		t.Errorf("a second time: %t, %v", ended, err)
	}
}

func TestEndKillsTheSandboxOfAKeeperThatDidNot(t *testing.T) {
	dir := temporary(t)
	lock, err := Hold(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	init := exec.Command("sleep", "600")
	if err := init.Start(); err != nil {
		t.Fatal(err)
	}
	if err := writePID(dir.PID(), init.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if _, err := End(dir); err != nil {
		t.Fatal(err)
	}
	if err := init.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the sandbox ended with %v", err)
	}
}

func TestEndLeavesADirectoryThatIsNoClustersAlone(t *testing.T) {
	dir := temporary(t)
	precious := filepath.Join(string(dir), "precious")
	if err := os.MkdirAll(precious, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := End(dir); err == nil || !strings.Contains(err.Error(), "left alone") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

func TestEndEndsTheKeeper(t *testing.T) {
	dir := temporary(t)
	lock, err := Hold(dir)
	if err != nil {
		t.Fatal(err)
	}
	keeper := exec.Command("/bin/sh", "-c", "exec sleep 600")
	keeper.ExtraFiles = []*os.File{lock}
	if err := keeper.Start(); err != nil {
		t.Fatal(err)
	}
	if err := writePID(dir.Lock(), keeper.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- keeper.Wait() }()
	if _, err := End(dir); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "terminated") {
		t.Errorf("the keeper ended with %v", err)
	}
}

func TestReserveGivesEachADirectoryThatSweepSparesUntilItIsLocked(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "mica-run")
	first, err := Reserve(prefix)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Reserve(prefix)
	if err != nil {
		t.Fatal(err)
	}
	if first == second {
		t.Fatalf("%s twice", first)
	}
	lock, err := Hold(second)
	if err != nil {
		t.Fatal(err)
	}
	sweep := func() (left []string) {
		t.Helper()
		if err := Sweep(prefix); err != nil {
			t.Fatal(err)
		}
		left, err := filepath.Glob(prefix + "*")
		if err != nil {
			t.Fatal(err)
		}
		return left
	}
	if left := sweep(); len(left) != 2 {
		t.Errorf("left %v of an empty and a running cluster", left)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if left := sweep(); len(left) != 1 || left[0] != string(first) {
		t.Errorf("left %v once the second was dead", left)
	}
}

func TestSweepsAtTheSameTimeDoNotFail(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "mica-run")
	for range 20 {
		dir, err := Reserve(prefix)
		if err != nil {
			t.Fatal(err)
		}
		lock, err := Hold(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.Close(); err != nil {
			t.Fatal(err)
		}
	}
	swept := make(chan error)
	for range 4 {
		go func() { swept <- Sweep(prefix) }()
	}
	for range 4 {
		if err := <-swept; err != nil {
			t.Error(err)
		}
	}
	if left, err := filepath.Glob(prefix + "*"); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestThoseWhoAskDoNotTakeEachOtherForAKeeper(t *testing.T) {
	dir := temporary(t)
	lock, err := Hold(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	asking, err := take(dir, 0, unix.LOCK_SH)
	if err != nil {
		t.Fatal(err)
	}
	defer asking.Close()
	if running, err := Running(dir); err != nil || running {
		t.Errorf("running is %t, %v", running, err)
	}
}

func TestACgroupThatTheClusterOnlyFoundStays(t *testing.T) {
	dir := temporary(t)
	if err := sandbox.CreateCgroup(dir.Cgroup()); err != nil {
		t.Skip("no cgroup can be made here: ", err)
	}
	t.Cleanup(func() {
		if err := sandbox.RemoveCgroup(dir.Cgroup()); err != nil {
			t.Error(err)
		}
	})
	lock, err := Hold(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if ended, err := End(dir); err != nil || !ended {
		t.Fatalf("got %t, %v", ended, err)
	}
	found, err := filepath.Glob(filepath.Join("/sys/fs/cgroup", dir.Cgroup()))
	if err != nil {
		t.Fatal(err)
	}
	inOne, err := filepath.Glob(filepath.Join("/sys/fs/cgroup/*", dir.Cgroup()))
	if err != nil || len(found)+len(inOne) == 0 {
		t.Errorf("the cgroup is gone, %v", err)
	}
}

func TestWhatAKeeperInheritsIsNotInheritedFromIt(t *testing.T) {
	dir := temporary(t)
	lock, err := Hold(dir)
	if err != nil {
		t.Fatal(err)
	}
	// As exec leaves it: without the flag that Go sets.
	fd, err := unix.Dup(int(lock.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	lock = inherited(fd, "lock")
	child := exec.Command("sleep", "600")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	if running, err := Running(dir); err != nil || !running {
		t.Errorf("running is %t, %v while the lock is open", running, err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if running, err := Running(dir); err != nil || running {
		t.Errorf("running is %t, %v after the keeper's end, while its child lives", running, err)
	}
}
