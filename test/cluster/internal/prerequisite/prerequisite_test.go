package prerequisite

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// capable is a machine that lacks nothing.
func capable() Machine {
	yes := func(string) bool { return true }
	return Machine{Capabilities: ^uint64(0), Has: yes, Exists: yes, Writable: yes}
}

func except(lacking ...string) func(string) bool {
	return func(name string) bool {
		for _, lack := range lacking {
			if name == lack {
				return false
			}
		}
		return true
	}
}

func TestCheck(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*Machine)
		want    []string
		hostGPU bool
	}{
		"nothing lacks": {func(*Machine) {}, nil, true},
		"an ordinary user needs root, and nothing else is looked at": {
			func(m *Machine) { m.UID, m.Has = 1000, except("go") },
			[]string{"root:"},
			false,
		},
		"each missing program comes with its package": {
			func(m *Machine) { m.Has = except("gcc", "mount") },
			[]string{"gcc:", "apt-get install gcc libc6-dev", "mount:", "apt-get install mount"},
			false,
		},
		"a container without privileges": {
			func(m *Machine) { m.Capabilities &^= 1 << unix.CAP_SYS_ADMIN },
			[]string{"CAP_SYS_ADMIN", "--privileged"},
			false,
		},
		"CAP_SYS_RESOURCE is not needed": {
			func(m *Machine) { m.Capabilities &^= 1 << unix.CAP_SYS_RESOURCE },
			nil,
			false,
		},
		"a kernel without network namespaces": {
			func(m *Machine) { m.Exists = except("/proc/self/ns/net") },
			[]string{"net namespaces"},
			false,
		},
		"a cgroup v1 controller that is not mounted": {
			func(m *Machine) { m.Writable = except("/sys/fs/cgroup/pids") },
			[]string{"cgroup v1 controller pids"},
			false,
		},
		"cgroup v2 needs no v1 controllers": {
			func(m *Machine) { m.Unified, m.Writable = true, except("/sys/fs/cgroup/pids") },
			nil,
			false,
		},
		"a read-only cgroup v2 hierarchy": {
			func(m *Machine) { m.Unified, m.Writable = true, except("/sys/fs/cgroup/cgroup.subtree_control") },
			[]string{"writable cgroup v2"},
			false,
		},
		"the machine's own GPUs need the driver": {
			func(m *Machine) { m.Exists = func(path string) bool { return !strings.Contains(path, "nvidia") } },
			[]string{"/dev/nvidiactl:", "libnvidia-ml.so.1:"},
			true,
		},
		"simulated GPUs do not": {
			func(m *Machine) { m.Exists = func(path string) bool { return !strings.Contains(path, "nvidia") } },
			nil,
			false,
		},
		"one directory with the driver's library is enough": {
			func(m *Machine) {
				m.Exists = func(path string) bool {
					return !strings.Contains(path, "libnvidia") || strings.HasPrefix(path, "/usr/lib64/")
				}
			},
			nil,
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			machine := capable()
			test.change(&machine)
			err := machine.Check(test.hostGPU)
			if len(test.want) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var missing Error
			if !errors.As(err, &missing) {
				t.Fatalf("got %v", err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in:\n%v", want, err)
				}
			}
		})
	}
}
