package layout

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for dir, want := range map[Dir]string{
		DefaultDir:                      "",
		RunPrefix + "99":                "",
		"relative":                      "clean absolute",
		"/":                             "clean absolute",
		"/var/lib/../lib/mica":          "clean absolute",
		"/var/lib/mica/":                "clean absolute",
		"/var/lib/my mica":              "letters, digits",
		"/var/lib/$(reboot)":            "letters, digits",
		"/var/lib/mica\n":               "letters, digits",
		"/var/lib/" + "a23456789012345": "choose a shorter one",
	} {
		err := dir.Check()
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", dir, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: got %v, want %q", dir, err, want)
		}
	}
}

func TestTheLongestDirectoryLeavesRoomForAPluginsSocket(t *testing.T) {
	dir := Dir("/" + strings.Repeat("d", maxDir-1))
	if err := dir.Check(); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir.Kubelet(), "plugins_registry", "gpu.nvidia.com-01234567-89ab-cdef-0123-456789abcdef-reg.sock")
	if len(socket) != 107 {
		t.Errorf("%s has %d characters", socket, len(socket))
	}
}

func TestEverythingIsBelowTheDirectory(t *testing.T) {
	dir := Dir("/var/lib/mica")
	for _, path := range []string{
		dir.Lock(), dir.Spec(), dir.Info(), dir.PID(), dir.Control(), dir.Failure(), dir.Logs(), dir.Log("etcd"), dir.AuditLog(), dir.Kubeconfig(),
		dir.PKI(), dir.Config(), dir.Etcd(), dir.Kubelet(), dir.CDI(), dir.Driver(), dir.SimSocket(), dir.Containerd(), dir.Run(),
		dir.ContainerdSocket(), dir.Shadow("/var/log"), dir.CgroupMade(),
	} {
		if !strings.HasPrefix(path, "/var/lib/mica/") {
			t.Errorf("%s is not", path)
		}
	}
}

func TestDirectoriesWithTheSameNameHaveCgroupsOfTheirOwn(t *testing.T) {
	one, other := Dir("/var/lib/mica").Cgroup(), Dir("/tmp/mica").Cgroup()
	if one == other {
		t.Errorf("%s twice", one)
	}
	if again := Dir("/var/lib/mica").Cgroup(); again != one {
		t.Errorf("%s is %s the next time", one, again)
	}
}
