package launch

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/test/cluster/internal/build"
	"github.com/mica-gpu/mica/test/cluster/internal/layout"
	"github.com/mica-gpu/mica/test/cluster/internal/supervisor"
)

func TestImagesAreAssembledAnew(t *testing.T) {
	program, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	binaries := map[string]string{"pause": filepath.Join(dir, "pause"), "workload": filepath.Join(dir, "workload")}
	stale := []byte("with the glibc of last year")
	for _, binary := range binaries {
		for path, data := range map[string][]byte{binary: program, binary + ".tar": stale} {
			if err := os.WriteFile(path, data, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	archives, err := assembleImages(binaries)
	if err != nil {
		t.Fatal(err)
	}
	for _, archive := range archives {
		if data, err := os.ReadFile(archive); err != nil || bytes.Equal(data, stale) {
			t.Errorf("%s is stale, %v", archive, err)
		}
	}
	if len(archives) != len(binaries) {
		t.Errorf("got %v", archives)
	}
}

func TestARunningClusterIsTakenOnlyForTheSameCheckoutAndHardware(t *testing.T) {
	dir := layout.Dir(t.TempDir())
	node := filepath.Join(t.TempDir(), "p5.48xlarge.yaml")
	if err := os.WriteFile(node, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	options := Options{Dir: dir, SimNode: node, Cache: &build.Cache{Source: "/home/one/mica/test/cluster"}}
	running := supervisor.Spec{Dir: dir, Checkout: "/home/one/mica", SimNode: node, DriverRoot: dir.Driver()}
	for name, test := range map[string]struct {
		change func(*supervisor.Spec)
		want   string
	}{
		"the same":                          {func(*supervisor.Spec) {}, ""},
		"another checkout":                  {func(s *supervisor.Spec) { s.Checkout = "/home/two/mica" }, "was started from /home/two/mica: end it with `make cluster-down`"},
		"another simulated machine":         {func(s *supervisor.Spec) { s.SimNode = "/nodes/g5.12xlarge.yaml" }, "has other GPUs (g5.12xlarge)"},
		"the machine's GPUs, not simulated": {func(s *supervisor.Spec) { s.SimNode, s.DriverRoot = "", "/" }, "has other GPUs (this machine's own)"},
	} {
		spec := running
		test.change(&spec)
		if err := spec.Save(); err != nil {
			t.Fatal(err)
		}
		switch err := options.CheckRunning(); {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}
