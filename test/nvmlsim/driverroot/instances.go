package driverroot

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// capabilitySet is the capability devices of a GPU's MIG instances: the minor
// of each by the directory of its file below the tree.
type capabilitySet map[string]int

func capabilitiesOf(gpuMinor int, instances []model.InstanceState) capabilitySet {
	set := capabilitySet{}
	for _, gi := range instances {
		dir := path.Join(instancesDir(gpuMinor), fmt.Sprintf("gi%d", gi.ID))
		set[dir] = gi.Capability
		for _, ci := range gi.ComputeInstances {
			set[path.Join(dir, fmt.Sprintf("ci%d", ci.ID))] = ci.Capability
		}
	}
	return set
}

// instances emits the capability devices of the instances that there are and,
// from then on, of every one that comes. What belongs to an instance is there
// when the call that creates it returns, and gone when the one that destroys it does.
func (t *Tree) instances(machine *model.Machine) {
	shown := make([]capabilitySet, len(machine.GPUs()))
	for _, gpu := range machine.GPUs() {
		shown[gpu.Index] = capabilitySet{}
		t.show(shown[gpu.Index], capabilitiesOf(gpu.Minor, machine.Instances(gpu.Index)))
	}
	if t.err != nil {
		return
	}
	machine.WatchInstances(func(gpu int, instances []model.InstanceState) {
		t.follow(func() { t.show(shown[gpu], capabilitiesOf(machine.GPUs()[gpu].Minor, instances)) })
	})
}

// follow changes the emitted tree as the machine has changed.
func (t *Tree) follow(change func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.removed || t.err != nil {
		return
	}
	if _, err := os.Lstat(filepath.Join(t.root, marker)); errors.Is(err, fs.ErrNotExist) {
		t.removed = true // by another process, and stays removed
		return
	}
	change()
	if t.err != nil {
		t.failed <- t.err
	}
}

// Failed delivers the error that the tree could not follow the machine for. The
// tree follows no further.
func (t *Tree) Failed() <-chan error { return t.failed }

// show turns what is shown into what there is.
func (t *Tree) show(shown, want capabilitySet) {
	for dir, minor := range shown {
		if want[dir] != minor {
			t.remove(dir)
			t.removeDevice(model.CapabilityNode(minor, model.InstanceCapabilityMode))
		}
	}
	maps.DeleteFunc(shown, func(dir string, minor int) bool { return want[dir] != minor })
	for dir, minor := range want {
		if _, known := shown[dir]; known {
			continue
		}
		t.file(path.Join(dir, "access"), access(minor, model.InstanceCapabilityMode))
		t.device(model.CapabilityNode(minor, model.InstanceCapabilityMode))
		shown[dir] = minor
	}
}

func (t *Tree) remove(name string) {
	if t.err == nil {
		t.fail(os.RemoveAll(filepath.Join(t.root, name)))
	}
}
