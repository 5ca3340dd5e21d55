package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func start(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Start(Command{
		Name: "probe",
		Path: "/bin/sh",
		Args: []string{"-c", script},
		Env:  []string{"GREETING=hello"},
		Log:  filepath.Join(t.TempDir(), "probe.log"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestEndingTellsNameStatusAndLastLines(t *testing.T) {
	ending := start(t, "echo $GREETING; echo oops >&2; exit 3").Ending()
	for _, want := range []string{"probe ended", "exit status 3", "  hello\n  oops"} {
		if !strings.Contains(ending, want) {
			t.Errorf("%q is not in:\n%s", want, ending)
		}
	}
}

func TestKillWaitsForTheEnd(t *testing.T) {
	p := start(t, "exec sleep 600")
	p.Kill()
	select {
	case <-p.Done():
	default:
		t.Error("Kill returned before the process had ended")
	}
	if ending := p.Ending(); !strings.Contains(ending, "signal: killed") {
		t.Error(ending)
	}
}

func TestStartNamesTheComponent(t *testing.T) {
	_, err := Start(Command{Name: "etcd", Path: "/nowhere/etcd", Log: filepath.Join(t.TempDir(), "log")})
	if err == nil || !strings.Contains(err.Error(), "starting etcd") {
		t.Errorf("got %v", err)
	}
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(strings.Repeat("x", 100<<10)+"\none\ntwo\nthree\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := Tail(path, 2); got != "  two\n  three" {
		t.Errorf("got %q", got)
	}
	if got := Tail(path+".missing", 2); !strings.Contains(got, "no such file") {
		t.Errorf("got %q", got)
	}
}
