package driverroot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHint(t *testing.T) {
	const library = "usr/lib64/libnvidia-ml.so.1"
	loaded := install(t, kernelVersion)
	none := t.TempDir()
	link := filepath.Join(t.TempDir(), "driver")
	must(t, os.Symlink("/opt/driver-580", link))
	for name, tc := range map[string]struct {
		host, local, proc string
		want              []string // none: there is nothing to say
	}{
		"installed on the host":            {"/", install(t, library), loaded, nil},
		"installed in a container":         {containerRoot, install(t, library), loaded, nil},
		"nowhere":                          {"/", t.TempDir(), none, nil},
		"in a container, not on the host":  {"/", install(t, "run/nvidia/driver/"+library), loaded, []string{"the NVIDIA driver is at /run/nvidia/driver: set nvidiaDriverRoot=/run/nvidia/driver"}},
		"on the host and in a container":   {"/", install(t, library, "run/nvidia/driver/"+library), loaded, []string{"there is an NVIDIA driver at /run/nvidia/driver as well", "set nvidiaDriverRoot="}},
		"on the host, not in a container":  {containerRoot, t.TempDir(), loaded, []string{"/run/nvidia/driver has no driver, but the kernel has one loaded", "set nvidiaDriverRoot=/ if"}},
		"a container that is not there":    {containerRoot + "/", filepath.Join(t.TempDir(), "driver"), none, []string{"/run/nvidia/driver has no driver, and the kernel has none", "look at the pod"}},
		"a link that leads out of a mount": {"/opt/driver", link, loaded, []string{"/opt/driver is a symbolic link to /opt/driver-580", "set nvidiaDriverRoot to the target of the link"}},
	} {
		got := Hint(tc.host, tc.local, tc.proc)
		if got != "" && tc.want == nil {
			t.Errorf("%s: got %q", name, got)
		}
		for _, want := range tc.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: got %q, which does not say %q", name, got, want)
			}
		}
	}
}
