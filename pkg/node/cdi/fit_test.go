package cdi

import (
	"os"
	"path/filepath"
	"testing"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

func TestFit(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(t *testing.T, r rig, written *cdispec.Spec)
		fits   bool
	}{
		"nothing has changed": {func(*testing.T, rig, *cdispec.Spec) {}, true},
		"a device node of the GPU is gone": {func(t *testing.T, r rig, _ *cdispec.Spec) {
			t.Helper()
			must(t, os.Remove(filepath.Join(r.root, "dev/nvidia1")))
		}, false},
		"a library of another driver": {func(_ *testing.T, _ rig, written *cdispec.Spec) {
			written.ContainerEdits.Mounts = append(written.ContainerEdits.Mounts, &cdispec.Mount{HostPath: "/usr/lib64/libcuda.so.570.0", ContainerPath: "/usr/lib64/libcuda.so.570.0"})
		}, false},
		"another major number of a capability device": {func(_ *testing.T, _ rig, written *cdispec.Spec) {
			nodes := written.Devices[0].ContainerEdits.DeviceNodes
			nodes[len(nodes)-1].Major++
		}, false},
		"a damaged file": {func(_ *testing.T, _ rig, written *cdispec.Spec) { *written = cdispec.Spec{} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			r, instance := partitioned(t)
			common, err := r.edits.Common()
			must(t, err)
			own, err := r.edits.Partition(r.uuid(1), instance, 0)
			must(t, err)
			directory, err := NewDirectory(t.TempDir(), "gpu.nvidia.com")
			must(t, err)
			must(t, directory.Write(claim("one"), common, []Device{{Name: "gpu-1", Edits: own}}))
			written, err := directory.Spec(claim("one").UID)
			must(t, err)
			tc.change(t, r, &written)
			if fits, err := r.edits.Fit(written); err != nil || fits != tc.fits {
				t.Errorf("fits: %t (%v), want %t", fits, err, tc.fits)
			}
		})
	}
}
