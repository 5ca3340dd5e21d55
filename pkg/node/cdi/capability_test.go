package cdi

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/mica-gpu/mica/pkg/node/devnode"
	"github.com/mica-gpu/mica/test/fixture"
)

// partitioned has MIG enabled on GPU 1 and a partition on it.
func partitioned(t *testing.T) (r rig, instance int) {
	t.Helper()
	r = newRig(t, "p5.48xlarge", "/run/nvidia/driver")
	must(t, r.machine.SetMIGMode(1, true))
	start := 4
	state, err := r.machine.CreateInstance(1, "3g.40gb", &start)
	must(t, err)
	return r, state.ID
}

func TestEditsOfAPartition(t *testing.T) {
	r, instance := partitioned(t)
	gpu, err := r.edits.GPU(r.uuid(1))
	must(t, err)
	edits, err := r.edits.Partition(r.uuid(1), instance, 0)
	must(t, err)
	state := r.machine.Instances(1)[0]
	var got []string
	for _, node := range edits.DeviceNodes[len(gpu.DeviceNodes):] {
		got = append(got, fmt.Sprintf("%s %s %d:%d %o", node.Path, node.Type, node.Major, node.Minor, *node.FileMode))
	}
	var want []string
	for _, minor := range []int{state.Capability, state.ComputeInstances[0].Capability} {
		want = append(want, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d c 511:%d 444", minor, minor))
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if again, err := r.edits.GPU(r.uuid(1)); err != nil || !reflect.DeepEqual(again, gpu) {
		t.Errorf("the whole GPU's edits became %+v, %v", again, err)
	}
	// The kernel chooses another major number when the module is loaded again.
	devices := filepath.Join(r.root, "proc/devices")
	content, err := os.ReadFile(devices)
	must(t, err)
	must(t, os.WriteFile(devices, bytes.Replace(content, []byte("511 nvidia-caps"), []byte("237 nvidia-caps"), 1), 0o600))
	if edits, err = r.edits.Partition(r.uuid(1), instance, 0); err != nil || edits.DeviceNodes[len(edits.DeviceNodes)-1].Major != 237 {
		t.Errorf("got %+v, %v, want the major number 237", edits.DeviceNodes, err)
	}
}

// systemd drops devices that have no link when it reloads, and the runtime binds those
// of the host into a container that has a user namespace.
func TestDevicesAreOnTheHost(t *testing.T) {
	r, instance := partitioned(t)
	machine := t.TempDir()
	r.edits.roots.Machine = devnode.Host(machine)
	for _, dir := range []string{"dev/char", "dev/nvidia-caps"} {
		must(t, os.MkdirAll(filepath.Join(machine, dir), 0o755))
	}
	if _, err := r.edits.Common(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.edits.Partition(r.uuid(1), instance, 0); err != nil {
		t.Fatal(err)
	}
	state, minor := r.machine.Instances(1)[0], r.machine.GPUs()[1].Minor
	want := map[string]string{
		fmt.Sprint("195:", minor): fmt.Sprint("/run/nvidia/driver/dev/nvidia", minor),
		"195:254":                 "/run/nvidia/driver/dev/nvidia-modeset",
		"195:255":                 "/run/nvidia/driver/dev/nvidiactl",
		"510:0":                   "/run/nvidia/driver/dev/nvidia-uvm",
		"510:1":                   "/run/nvidia/driver/dev/nvidia-uvm-tools",
	}
	for _, minor := range []int{state.Capability, state.ComputeInstances[0].Capability} {
		path := fmt.Sprint("/dev/nvidia-caps/nvidia-cap", minor)
		want[fmt.Sprint("511:", minor)] = path
		if info, err := os.Lstat(filepath.Join(machine, path)); err != nil || info.Mode() != os.ModeDevice|os.ModeCharDevice|0o444 {
			t.Errorf("%s is %v (%v)", path, info, err)
		}
	}
	got := map[string]string{}
	links, err := os.ReadDir(filepath.Join(machine, "dev/char"))
	must(t, err)
	for _, link := range links {
		if got[link.Name()], err = os.Readlink(filepath.Join(machine, "dev/char", link.Name())); err != nil {
			t.Error(err)
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got the links %v, want %v", got, want)
	}
}

// An administrator can forbid that programs make device nodes.
func TestCapabilityDevicesAreNotMadeAgainstTheDriversWord(t *testing.T) {
	r, instance := partitioned(t)
	machine := t.TempDir()
	r.edits.roots.Machine = devnode.Host(machine)
	must(t, os.MkdirAll(filepath.Join(machine, "dev/nvidia-caps"), 0o755))
	dir := filepath.Join(r.root, "proc/driver/nvidia/capabilities", fmt.Sprintf("gpu%d/mig/gi%d", r.machine.GPUs()[1].Minor, instance))
	for _, file := range []string{"access", "ci0/access"} {
		content, err := os.ReadFile(filepath.Join(dir, file))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, file), bytes.Replace(content, []byte("Modify: 1"), []byte("Modify: 0"), 1), 0o600))
	}
	if _, err := r.edits.Partition(r.uuid(1), instance, 0); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(filepath.Join(machine, "dev/nvidia-caps")); err != nil || len(entries) > 0 {
		t.Errorf("there are %v (%v)", entries, err)
	}
}

func TestEditsOfAPartitionThatIsIncomplete(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(proc string, minor, instance int) error
		want   string
	}{
		"no compute instance": {
			func(proc string, minor, instance int) error {
				return os.RemoveAll(filepath.Join(proc, fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig/gi%d/ci0", minor, instance)))
			}, "the NVIDIA kernel driver has no file for it",
		},
		"no major number": {
			func(proc string, _, _ int) error {
				return os.WriteFile(filepath.Join(proc, "devices"), []byte("Character devices:\n195 nvidia\n"), 0o600)
			}, `has no line with "nvidia-caps"`,
		},
		"no number": {
			func(proc string, _, _ int) error {
				return os.WriteFile(filepath.Join(proc, "devices"), []byte("many nvidia-caps\n"), 0o600)
			}, "where a number was expected",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, instance := partitioned(t)
			must(t, tc.change(filepath.Join(r.root, "proc"), r.machine.GPUs()[1].Minor, instance))
			_, err := r.edits.Partition(r.uuid(1), instance, 0)
			fixture.Sentence(t, err, "find the capability devices of compute instance 0", r.uuid(1), tc.want)
		})
	}
}
