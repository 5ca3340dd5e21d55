package cdi

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/mica-gpu/mica/test/fixture"
)

// partitioned has MIG enabled on GPU 1 and a partition on it.
func partitioned(t *testing.T) (r rig, instance int) {
	t.Helper()
	r = newRig(t, "p5.48xlarge", "/run/nvidia/driver")
	if err := r.machine.SetMIGMode(1, true); err != nil {
		t.Fatal(err)
	}
	start := 4
	state, err := r.machine.CreateInstance(1, "3g.40gb", &start)
	if err != nil {
		t.Fatal(err)
	}
	return r, state.ID
}

func TestEditsOfAPartition(t *testing.T) {
	r, instance := partitioned(t)
	gpu, err := r.edits.GPU(r.uuid(1))
	if err != nil {
		t.Fatal(err)
	}
	edits, err := r.edits.Partition(r.uuid(1), instance, 0)
	if err != nil {
		t.Fatal(err)
	}
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
}

func TestEditsOfAPartitionThatIsIncomplete(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(proc string, minor, instance int) error
		want   string
	}{
		"no compute instance": {
			func(proc string, minor, instance int) error {
				return os.RemoveAll(filepath.Join(proc, fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig/gi%d/ci0", minor, instance)))
			}, "the NVIDIA kernel driver does not tell of it",
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
			if err := tc.change(filepath.Join(r.root, "proc"), r.machine.GPUs()[1].Minor, instance); err != nil {
				t.Fatal(err)
			}
			_, err := r.edits.Partition(r.uuid(1), instance, 0)
			fixture.Sentence(t, err, "find the capability devices of compute instance 0", r.uuid(1), tc.want)
		})
	}
}
