package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// machine is one that hack/check.sh looks at: programs that stand in for this
// machine's, and files below a root.
type machine struct {
	programs, root string
}

// capable is a machine that lacks nothing.
func capable(t *testing.T) machine {
	t.Helper()
	m := machine{programs: t.TempDir(), root: t.TempDir()}
	for _, name := range []string{"bash", "sort", "tail", "head", "cat", "timeout", "make", "git", "gcc", "mount", "umount", "setpriv", "unshare", "dirname"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skip(err)
		}
		if err := os.Symlink(path, filepath.Join(m.programs, name)); err != nil {
			t.Fatal(err)
		}
	}
	m.program(t, "go", `case "$*" in
"env GOVERSION") echo go1.99.0 ;;
"env "*) echo /tmp ;;
esac`)
	m.program(t, "id", "echo 0")
	m.program(t, "df", `echo Avail; echo 100`)
	m.file(t, "proc/self/status", "Name:\tbash\nCapEff:\t000001ffffffffff\n")
	for _, name := range []string{"proc/self/ns/pid", "proc/self/ns/mnt", "proc/self/ns/net", "sys/fs/cgroup/cgroup.controllers", "sys/fs/cgroup/cgroup.subtree_control"} {
		m.file(t, name, "")
	}
	m.file(t, "sbin/ldconfig", "")
	if err := os.Chmod(filepath.Join(m.root, "sbin/ldconfig"), 0o755); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m machine) program(t *testing.T, name, script string) {
	t.Helper()
	path := filepath.Join(m.programs, name)
	_ = os.Remove(path) // It may not be there.
	if err := os.WriteFile(path, []byte("#!/bin/bash\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (m machine) file(t *testing.T, name, content string) {
	t.Helper()
	path := filepath.Join(m.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (m machine) without(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := errorOfFirst(os.Remove(filepath.Join(m.programs, name)), os.Remove(filepath.Join(m.root, name))); err != nil {
			t.Fatal(err)
		}
	}
}

// errorOfFirst is nil when one of them is.
func errorOfFirst(errs ...error) error {
	for _, err := range errs {
		if err == nil {
			return nil
		}
	}
	return errs[0]
}

// check runs the script and returns what it says.
func (m machine) check(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(filepath.Join(m.programs, "bash"), append([]string{"../../hack/check.sh"}, args...)...)
	cmd.Env = []string{"PATH=" + m.programs, "CHECK_ROOT=" + m.root, "HOME=/nonexistent"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestCheckSaysAllThatAMachineLacks(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*testing.T, machine)
		args   string
		want   []string
	}{
		"nothing lacks": {func(*testing.T, machine) {}, "", nil},
		"several programs, each with its package": {
			func(t *testing.T, m machine) { m.without(t, "gcc", "mount", "git", "setpriv", "sbin/ldconfig") }, "",
			[]string{"/sbin/ldconfig:", "gcc:", "apt-get install gcc libc6-dev", "mount:", "apt-get install mount", "git:", "setpriv:"},
		},
		"no Go":       {func(t *testing.T, m machine) { m.without(t, "go") }, "", []string{"go:", "install Go 1."}},
		"an older Go": {func(t *testing.T, m machine) { m.program(t, "go", "echo go1.21.3") }, "", []string{"go on PATH is 1.21.3", "go.dev/dl"}},
		"a proxy that is away": {
			func(t *testing.T, m machine) {
				m.program(t, "go", `case "$*" in
"env GOVERSION") echo go1.99.0 ;;
"env GOPROXY") echo https://proxy.example ;;
"mod download"*) echo "dial tcp: lookup proxy.example: no such host"; exit 1 ;;
esac`)
			}, "",
			[]string{"cannot be fetched from https://proxy.example", "no such host", "set GOPROXY"},
		},
		"no space": {func(t *testing.T, m machine) { m.program(t, "df", "echo Avail; echo 1") }, "", []string{"has 1 GiB left and needs", "GOCACHE"}},
		"no root": {
			func(t *testing.T, m machine) { m.program(t, "id", "echo 1000") }, "",
			[]string{"root:", "sudo", "make test-fast"},
		},
		"no root, for what needs none": {func(t *testing.T, m machine) { m.program(t, "id", "echo 1000"); m.without(t, "mount") }, "--no-cluster", nil},
		"a container without privileges": {
			func(t *testing.T, m machine) { m.file(t, "proc/self/status", "CapEff:\t00000000a80425fb\n") }, "",
			[]string{"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "--privileged"},
		},
		"CAP_SYS_RESOURCE is not needed": {
			func(t *testing.T, m machine) { m.file(t, "proc/self/status", "CapEff:\t000001fffeffffff\n") }, "", nil,
		},
		"a kernel without network namespaces": {func(t *testing.T, m machine) { m.without(t, "proc/self/ns/net") }, "", []string{"net namespaces"}},
		"a cgroup v1 controller that is not mounted": {
			func(t *testing.T, m machine) {
				m.without(t, "sys/fs/cgroup/cgroup.controllers")
				for _, controller := range []string{"cpu", "cpuacct", "cpuset", "memory"} {
					m.file(t, "sys/fs/cgroup/"+controller, "")
				}
			}, "",
			[]string{"cgroup v1 controller pids"},
		},
		"no driver, for the machine's own GPUs": {func(*testing.T, machine) {}, "--gpu host", []string{"/dev/nvidiactl", "libnvidia-ml.so.1"}},
		"a driver": {
			func(t *testing.T, m machine) {
				m.file(t, "dev/nvidiactl", "")
				m.file(t, "usr/lib64/libnvidia-ml.so.1", "")
			}, "--gpu host", nil,
		},
		"hardware that is not known": {func(*testing.T, machine) {}, "--gpu amd", []string{"GPU=amd: there are GPU=sim"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := capable(t)
			test.change(t, m)
			said, err := m.check(t, strings.Fields(test.args)...)
			if (err != nil) != (len(test.want) > 0) {
				t.Errorf("it ends with %v and says:\n%s", err, said)
			}
			for _, want := range test.want {
				if !strings.Contains(said, want) {
					t.Errorf("%q is not in:\n%s", want, said)
				}
			}
		})
	}
}

// The check has to come before anything that takes long: only then does a user
// read of what lacks within seconds.
func TestTheMachineIsCheckedBeforeAnythingIsBuilt(t *testing.T) {
	for _, script := range []string{"demo.sh", "test.sh"} {
		text, err := os.ReadFile(filepath.Join("../../hack", script))
		if err != nil {
			t.Fatal(err)
		}
		_, steps, _ := strings.Cut(string(text), "\nbegin ")
		for _, line := range strings.Split(steps, "\n") {
			if strings.HasPrefix(line, "step ") || strings.HasPrefix(line, "show ") {
				if !strings.Contains(line, "hack/check.sh") {
					t.Errorf("%s begins with %s", script, line)
				}
				break
			}
		}
	}
}

// steps runs a script of steps and returns what a reader sees, and the log.
func steps(t *testing.T, script string) (seen, log string, err error) {
	t.Helper()
	library, absErr := filepath.Abs("../../hack/steps.sh")
	if absErr != nil {
		t.Fatal(absErr)
	}
	cmd := exec.Command("bash", "-c", fmt.Sprintf("set -euo pipefail\n. %s\n%s", library, script))
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	data, readErr := os.ReadFile(filepath.Join(cmd.Dir, "bin/logs/demo.log"))
	if readErr != nil {
		t.Fatal(readErr)
	}
	return durations.ReplaceAllString(string(out), "${1}0s"), string(data), err
}

// durations are left out of comparisons.
var durations = regexp.MustCompile(`(… |after |in )\d+s`)

func TestStepsAreNamedAndLogged(t *testing.T) {
	seen, log, err := steps(t, `
begin demo
step machine echo one
show tests echo two
finished`)
	if err != nil {
		t.Fatalf("%v: %s", err, seen)
	}
	want := `make demo: the log is bin/logs/demo.log
machine … 0s
tests …
two
tests … 0s
make demo: done in 0s
`
	if seen != want {
		t.Errorf("got\n%s\nwant\n%s", seen, want)
	}
	for _, line := range []string{"== machine: echo one\n", "one\n", "two\n"} {
		if !strings.Contains(log, line) {
			t.Errorf("the log lacks %q:\n%s", line, log)
		}
	}
}

func TestAFailureEndsWithItsReasonAndWhatToDo(t *testing.T) {
	seen, _, err := steps(t, `
begin demo
step fine echo earlier
fails() { echo "go: downloading x v1"; echo "syntax error in a.go"; return 3; }
step broken fails`)
	if err == nil {
		t.Fatal("it ends well")
	}
	_, end, found := strings.Cut(seen, "broken … failed after 0s\n")
	if !found || !strings.HasPrefix(end, "    syntax error in a.go\n\n") || !strings.Contains(end, "run `make demo` again") || strings.Contains(end, "earlier") {
		t.Errorf("it ends:\n%s", seen)
	}
}

func TestAStepEndsAtTheFirstCommandThatFails(t *testing.T) {
	seen, log, err := steps(t, `
broken() { false; echo "never reached"; }
begin demo
step broken broken`)
	if err == nil || strings.Contains(log, "never reached") {
		t.Errorf("%v: %s", err, seen)
	}
}
