package prepare

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2/ktesting"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/test/fixture"
)

// installed is a node with a driver of some version, on which claims are prepared with the edits that come from it.
type installed struct {
	*migRig
	root  string
	edits *cdi.Edits
	p     *Preparer
}

// install is the start of a plugin process after another driver was installed, in the same boot.
func (r *rig) install(t *testing.T, version string) *installed {
	t.Helper()
	file := fixture.File(t, "p5.48xlarge")
	file.GPUs, file.DriverVersion = file.GPUs[:2], version
	machine := fixture.Machine(t, file)
	i := &installed{migRig: &migRig{rig: r, machine: machine, library: fixture.Library(t, machine)}, root: fixture.DriverRoot(t, machine)}
	i.begin(t)
	return i
}

// begin is the start of a plugin process.
func (i *installed) begin(t *testing.T) {
	t.Helper()
	logger, _ := ktesting.NewTestContext(t)
	i.edits = cdi.NewEdits(i.library, cdi.Roots{Host: "/", Local: i.root, Hook: "/plugins/nvidia-cdi-hook"}, logger)
	i.p = i.start(t)
	i.p.SetNode(Node{Pool: NewPool(fixture.Driver, fixture.NodeName, gpu.Shapes(i.free(t, i.p).GPUs, gpu.ByDefault)), Edits: i.edits, Tools: Tools{MIG: i.library, Modes: i.library}})
}

// mounted are the libraries of CUDA in a claim's CDI file.
func (r *rig) mounted(t *testing.T, claim *resourceapi.ResourceClaim) (libraries []string) {
	t.Helper()
	for _, mount := range r.written(t, claim).ContainerEdits.Mounts {
		if name := filepath.Base(mount.HostPath); strings.HasPrefix(name, "libcuda.so.") {
			libraries = append(libraries, name)
		}
	}
	slices.Sort(libraries)
	return libraries
}

func (r *rig) written(t *testing.T, claim *resourceapi.ResourceClaim) cdispec.Spec {
	t.Helper()
	var spec cdispec.Spec
	must(t, json.Unmarshal([]byte(read(t, r.spec(claim))), &spec))
	return spec
}

// ways are those in which the plugin comes by a claim that is prepared.
var ways = map[string]func(*testing.T, *Preparer, *resourceapi.ResourceClaim){
	"reconcile": func(t *testing.T, p *Preparer, _ *resourceapi.ResourceClaim) { t.Helper(); reconcile(t, p) },
	"prepare":   func(t *testing.T, p *Preparer, c *resourceapi.ResourceClaim) { t.Helper(); prepare(t, p, c) },
}

// Containers of a claim can be started again after the driver was replaced without a reboot.
func TestCDIFilesFollowTheDriver(t *testing.T) {
	for name, come := range ways {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			old := r.install(t, "580.95.05")
			claim := old.allocated("c", whole0)
			prepare(t, old.p, claim)
			if got := r.mounted(t, claim); len(got) != 1 || !strings.Contains(got[0], "580.95.05") {
				t.Fatalf("got the libraries %q, want that of 580.95.05", got)
			}
			come(t, r.install(t, "590.44.01").p, claim)
			if got := r.mounted(t, claim); len(got) != 1 || !strings.Contains(got[0], "590.44.01") {
				t.Errorf("got the libraries %q, want that of 590.44.01", got)
			}
			r.expect(t, claim)
		})
	}
}

// A new process writes no file anew that fits, and asks NVML about no GPU to know that.
func TestCDIFilesThatFitAreLeftAlone(t *testing.T) {
	for name, come := range ways {
		t.Run(name, func(t *testing.T) {
			i := newRig(t).install(t, "580.95.05")
			claim := i.allocated("c", big0)
			prepare(t, i.p, claim)
			before, err := os.Stat(i.spec(claim))
			must(t, err)
			i.begin(t)
			calls := i.calls(t, func() { come(t, i.p, claim) })
			if after, err := os.Stat(i.spec(claim)); err != nil || !os.SameFile(before, after) {
				t.Errorf("the file was written anew (%v)", err)
			}
			if calls["nvmlDeviceGetHandleByUUID"] > 0 || calls["nvmlDeviceGetHandleByIndex_v2"] > 0 {
				t.Errorf("GPUs were looked for: %v", calls)
			}
		})
	}
}

// A file stays for as long as the installed driver cannot be read: a container that
// is running needs none, and there is nothing better for the next.
func TestACDIFileStaysWhileTheDriverCannotBeRead(t *testing.T) {
	r := newRig(t)
	i := r.install(t, "580.95.05")
	claim := i.allocated("c", whole0)
	prepare(t, i.p, claim)
	node := filepath.Join(i.root, "dev/nvidia-uvm")
	must(t, os.Rename(node, node+".later"))
	fixture.Sentence(t, i.p.Reconcile(testContext(t)), "claim default/c", "/dev/nvidia-uvm is missing")
	prepare(t, i.p, claim)
	if got := r.mounted(t, claim); len(got) != 1 {
		t.Errorf("got the libraries %q, want that of the driver before", got)
	}
}
