package diagnosis

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2/ktesting"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/lock"
	"github.com/mica-gpu/mica/pkg/node/mps"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/pkg/node/prepare"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// rig is a simulated node with the plugin's records and locks.
type rig struct {
	machine *model.Machine
	library *nvml.Library
	edits   edits
	dir     string
	options Options
	tools   prepare.Tools
	set     intervals
	run     daemons
}

func newRig(t *testing.T, machine string) *rig {
	t.Helper()
	r := &rig{machine: fixture.Machine(t, fixture.File(t, machine)), dir: t.TempDir()}
	r.library = fixture.Library(t, r.machine)
	r.edits.nodes = []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}
	r.tools = prepare.Tools{MIG: r.library, Modes: r.library, TimeSlices: &r.set, Daemons: &r.run}
	r.options = Options{Version: "v1.2.3", Open: r.open, Directories: []string{r.dir}, Driver: fixture.Driver, Privileges: Privileges{SysAdmin: true}}
	return r
}

func (r *rig) open() (Hardware, error) {
	return Hardware{GPUs: r.library, Edits: &r.edits, Tools: r.tools}, nil
}

// look runs the self-test.
func (r *rig) look(t *testing.T) *Report {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	return Run(ctx, r.options)
}

// preparer is that of the node's plugin, or of a process beside it.
func (r *rig) preparer(t *testing.T) *prepare.Preparer {
	t.Helper()
	records, err := journal.Open(filepath.Join(r.dir, "claims"))
	must(t, err)
	locks, err := lock.Open(filepath.Join(r.dir, "locks"))
	must(t, err)
	specs, err := cdi.NewDirectory(filepath.Join(r.dir, "cdi"), fixture.Driver)
	must(t, err)
	return prepare.New(prepare.Options{
		Journal: records, CDI: specs, Locks: locks, Claims: noClaims{}, Phases: noPhases{},
		Driver: fixture.Driver, Pool: fixture.NodeName, BootID: "boot-1", ReleaseWait: time.Millisecond,
	})
}

// hold has the plugin prepare a claim for a device.
func (r *rig) hold(t *testing.T, device string) {
	t.Helper()
	node, _, err := r.library.Discover()
	must(t, err)
	plugin := r.preparer(t)
	plugin.SetNode(prepare.Node{Pool: prepare.NewPool(fixture.Driver, fixture.NodeName, gpu.Shapes(node.GPUs, gpu.ByDefault)), Edits: &r.edits, Tools: r.tools})
	_, ctx := ktesting.NewTestContext(t)
	if _, err := plugin.Prepare(ctx, fixture.Claim("holder", fixture.Result("a", device))); err != nil {
		t.Fatal(err)
	}
}

// untouched fails the test if a self-test has left something.
func (r *rig) untouched(t *testing.T) {
	t.Helper()
	state, err := r.machine.State()
	must(t, err)
	for _, g := range state.GPUs {
		if len(g.Instances) > 0 || (g.MIGCapable && g.MIGMode != "Disabled") {
			t.Errorf("GPU %d is left with MIG %s and instances %v", g.Index, g.MIGMode, g.Instances)
		}
	}
	for _, pattern := range []string{"claims/*.json", "cdi/mica-*"} {
		if left, err := filepath.Glob(filepath.Join(r.dir, pattern)); err != nil || len(left) > 0 {
			t.Errorf("left %v, %v", left, err)
		}
	}
	if len(r.run.running) > 0 || (len(r.set.last) > 0 && r.set.last[len(r.set.last)-1] != gpu.DefaultInterval) {
		t.Errorf("left the daemons %v and the time-slice %v", r.run.running, r.set.last)
	}
}

type noClaims struct{}

// Get implements prepare.Claims.
func (noClaims) Get(context.Context, types.NamespacedName) (*resourceapi.ResourceClaim, error) {
	return nil, errors.New("there is no API server")
}

type noPhases struct{}

// ObservePhase implements prepare.Phases.
func (noPhases) ObservePhase(string, string, time.Duration) {}

// edits have the nodes in common, and one for each GPU.
type edits struct {
	nodes []string
	err   error
	// partition is what Partition fails with; nil: it does not.
	partition func() error
}

func (e *edits) Common() (cdispec.ContainerEdits, error) {
	common := cdispec.ContainerEdits{
		Mounts: []*cdispec.Mount{{HostPath: "/usr/lib64/libcuda.so.1", ContainerPath: "/usr/lib64/libcuda.so.1"}},
		Hooks:  []*cdispec.Hook{{HookName: "createContainer", Path: "/hook"}},
	}
	for _, name := range e.nodes {
		common.DeviceNodes = append(common.DeviceNodes, &cdispec.DeviceNode{Path: "/dev/" + name})
	}
	return common, e.err
}

func (e *edits) GPU(string) (cdispec.ContainerEdits, error) {
	return cdispec.ContainerEdits{DeviceNodes: []*cdispec.DeviceNode{{Path: "/dev/nvidia0"}}}, nil
}

func (e *edits) Partition(string, int, int) (cdispec.ContainerEdits, error) {
	if e.partition != nil {
		return cdispec.ContainerEdits{}, e.partition()
	}
	return cdispec.ContainerEdits{DeviceNodes: []*cdispec.DeviceNode{{Path: "/dev/nvidia-caps/nvidia-cap12"}}}, nil
}

// Fit implements prepare.Edits. The driver stays the same.
func (*edits) Fit(cdispec.Spec) (bool, error) { return true, nil }

// intervals notes the time-slices that were set.
type intervals struct {
	mu   sync.Mutex
	last []gpu.Interval
	err  error
}

// Set implements prepare.TimeSlices.
func (s *intervals) Set(_ context.Context, _ string, interval gpu.Interval) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.last = append(s.last, interval)
	}
	return s.err
}

// daemons notes the MPS daemons that run.
type daemons struct {
	mu      sync.Mutex
	running map[string]bool
	starts  int
}

// Start implements prepare.Daemons.
func (d *daemons) Start(_ context.Context, daemon mps.Daemon) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running == nil {
		d.running = map[string]bool{}
	}
	d.running[daemon.ID] = true
	d.starts++
	return nil
}

// Stop implements prepare.Daemons.
func (d *daemons) Stop(_ context.Context, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.running, id)
	return nil
}

// Edits implements prepare.Daemons.
func (d *daemons) Edits(string, mps.Limits) cdispec.ContainerEdits {
	return cdispec.ContainerEdits{Env: []string{"CUDA_MPS_PIPE_DIRECTORY=/mps"}}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
