package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

// occupied makes a cgroup below a hierarchy that has a process.
func occupied(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 || len(hierarchies()) == 0 || unix.Access(hierarchies()[0], unix.W_OK) != nil {
		t.Skip("only root can make cgroups, where they are writable")
	}
	t.Cleanup(func() {
		if err := RemoveCgroup(name); err != nil {
			t.Error(err)
		}
	})
	root := cgroupMount
	if !Unified() {
		root = filepath.Join(root, "pids")
	}
	group := filepath.Join(root, name, "kubepods")
	if err := os.MkdirAll(group, 0o755); err != nil {
		t.Fatal(err)
	}
	member := exec.Command("sleep", "600")
	if err := member.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = member.Process.Kill()
		_ = member.Wait()
	})
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(member.Process.Pid)), 0o644); err != nil {
		t.Fatal(err)
	}
	return member
}

func TestCreateCgroupRefusesOneThatIsInUse(t *testing.T) {
	name := fmt.Sprintf("/mica-test-%d", os.Getpid())
	member := occupied(t, name)
	if err := CreateCgroup(name); err == nil || !strings.Contains(err.Error(), "another cluster's") {
		t.Errorf("got %v", err)
	}
	if err := unix.Kill(member.Process.Pid, 0); err != nil {
		t.Errorf("the member: %v", err)
	}
	// What is left when its members are gone is no hindrance.
	_ = member.Process.Kill()
	_ = member.Wait()
	if err := CreateCgroup(name); err != nil {
		t.Error(err)
	}
}

func TestRemoveTreeRemovesChildrenFirst(t *testing.T) {
	group := filepath.Join(t.TempDir(), "mica")
	if err := os.MkdirAll(filepath.Join(group, "kubepods", "pod1"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := removeTree(group, empty); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(group); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("the group: %v", err)
		}
	}
}

// left makes a directory such as a cluster's.
func left(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "mica")
	for _, name := range []string{"logs/pods", "etcd/member"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"lock", "spec.json"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func TestRemoveAllButKeepsWhatItIsTold(t *testing.T) {
	dir := left(t)
	if err := removeAllBut(dir, "lock", []string{"logs"}, os.RemoveAll); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{"lock", "logs"}) {
		t.Errorf("left %v", got)
	}
	for range 2 {
		if err := removeAllBut(dir, "lock", nil, os.RemoveAll); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory: %v", err)
	}
}

func TestRemoveAllButRemovesTheLockLast(t *testing.T) {
	dir := left(t)
	var order []string
	remove := func(path string) error {
		order = append(order, filepath.Base(path))
		return os.RemoveAll(path)
	}
	if err := removeAllBut(dir, "lock", nil, remove); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(order, []string{"etcd", "logs", "spec.json", "lock"}) {
		t.Errorf("removed in the order %v", order)
	}
}

func TestRemoveAllButLeavesTheLockWithWhatCannotBeRemoved(t *testing.T) {
	dir := left(t)
	stubborn := errors.New("stubborn")
	remove := func(path string) error {
		if filepath.Base(path) == "logs" {
			return stubborn
		}
		return os.RemoveAll(path)
	}
	if err := removeAllBut(dir, "lock", nil, remove); !errors.Is(err, stubborn) {
		t.Errorf("got %v", err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{"lock", "logs"}) {
		t.Errorf("left %v", got)
	}
}

func TestRemoveAllButSparesTheDirectoryOfTheNextCluster(t *testing.T) {
	dir := left(t)
	remove := func(path string) error {
		err := os.RemoveAll(path)
		if filepath.Base(path) == "lock" {
			err = errors.Join(err, os.WriteFile(path, []byte("the next one's"), 0o644))
		}
		return err
	}
	if err := removeAllBut(dir, "lock", nil, remove); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{"lock"}) {
		t.Errorf("left %v", got)
	}
}

func TestInitRefusesToBeAnyProcessButTheFirst(t *testing.T) {
	if _, err := Init([]string{"/bin/true"}, nil); err == nil {
		t.Error("it ran")
	}
}
