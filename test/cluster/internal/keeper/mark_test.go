package keeper

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestAMarkIsThatOfOneProcessOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pid")
	if err := writePID(path, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	self, err := readMark(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*mark)
		want   bool
	}{
		"itself":                          {func(*mark) {}, true},
		"an earlier one with its ID":      {func(m *mark) { m.started-- }, false},
		"one with its ID before a reboot": {func(m *mark) { m.boot = "another" }, false},
		"none at all":                     {func(m *mark) { *m = mark{} }, false},
	} {
		other := self
		test.change(&other)
		if got := other.alive(); got != test.want {
			t.Errorf("%s: alive is %t", name, got)
		}
	}
}

func TestAMarkedProcessIsNotAliveOnceItHasEnded(t *testing.T) {
	// A program's name may look like the rest of its status.
	program := filepath.Join(t.TempDir(), "a) Z (b")
	if err := os.Symlink("/bin/sleep", program); err != nil {
		t.Fatal(err)
	}
	child := exec.Command(program, "600")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	m, err := markOf(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if !m.alive() {
		t.Error("it is not alive at first")
	}
	if err := m.signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); err == nil {
		t.Error("it ended by itself")
	}
	if m.alive() {
		t.Error("it is still alive")
	}
	if err := m.signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

func TestReadMarkRefusesWhatTellsNoProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pid")
	for _, text := range []string{"17\n", "1 2 boot\n", "no ID\n"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := readMark(path); err == nil || !strings.Contains(err.Error(), "identifies no process") {
			t.Errorf("%q: got %v", text, err)
		}
	}
}
