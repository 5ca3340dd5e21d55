package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mica-gpu/mica/test/fixture"
)

// Pods would fail one by one, each with an error of the container runtime.
func TestTheHookIsNotInstalledWhereNothingRuns(t *testing.T) {
	from, dir := write(t, "hook", "new"), t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC, "size=64k"); err != nil {
		t.Skip("mounting needs root: ", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	err := (&hookInstaller{from: from}).install(t.Context(), filepath.Join(dir, hookName))
	fixture.Sentence(t, err, dir, "is mounted noexec", "nvidiaCDIHookDirectory")
}

func TestTheHookIsInstalledOnce(t *testing.T) {
	from, dir := write(t, "hook", "new"), t.TempDir()
	to := filepath.Join(dir, hookName)
	dead, busy := filepath.Join(dir, "."+hookName+"-1"), filepath.Join(dir, "."+hookName+"-2")
	for _, half := range []string{dead, busy} {
		must(t, os.WriteFile(half, []byte("ha"), 0o600))
	}
	must(t, os.Chtimes(dead, time.Time{}, time.Now().Add(-2*halfHookAge)))
	installer := &hookInstaller{from: from + "-missing"}
	if err := installer.install(t.Context(), to); err == nil {
		t.Error("installed what is not there")
	}
	installer.from = from
	var first os.FileInfo
	for range 3 { // the node's driver is not loaded yet
		must(t, installer.install(t.Context(), to))
		info, err := os.Stat(to)
		must(t, err)
		if first == nil {
			first = info
		}
		if !os.SameFile(first, info) {
			t.Error("it was installed again")
		}
	}
	if _, err := os.Stat(dead); !os.IsNotExist(err) {
		t.Errorf("got %v for what a process left that died", err)
	}
	if _, err := os.Stat(busy); err != nil {
		t.Error(err)
	}
}

// A start on a full disk takes no space for the hook, or goes without the one of a newer version.
func TestTheHookOnAFullDisk(t *testing.T) {
	from, dir := write(t, "hook", "old"), t.TempDir()
	to := filepath.Join(dir, hookName)
	fixture.SmallDisk(t, dir)
	install := func() error {
		t.Helper()
		return (&hookInstaller{from: from}).install(t.Context(), to)
	}
	expect := func(content string, mode os.FileMode) {
		t.Helper()
		got, err := os.ReadFile(to)
		info, statErr := os.Stat(to)
		if err = errors.Join(err, statErr); err != nil || string(got) != content || info.Mode() != mode {
			t.Errorf("got %q, %v, want %q with mode %v", got, err, content, mode)
		}
	}
	undo := fixture.FillDisk(t, dir)
	fixture.Sentence(t, install(), "no space left on device") // there is none that could be kept
	undo()
	must(t, install())
	first, err := os.Stat(to)
	must(t, err)
	must(t, install())
	if again, err := os.Stat(to); err != nil || !os.SameFile(first, again) {
		t.Errorf("the same hook was copied again: %v", err)
	}

	undo = fixture.FillDisk(t, dir)
	for _, bundled := range []string{"old", "newer"} {
		must(t, os.WriteFile(from, []byte(bundled), 0o600))
		must(t, install())
		expect("old", hookMode)
	}
	must(t, os.Chmod(to, 0o600))
	fixture.Sentence(t, install(), "no space left on device") // no container could run the old one
	undo()
	must(t, install())
	expect("newer", hookMode)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
