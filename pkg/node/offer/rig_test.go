package offer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/lock"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/pkg/node/prepare"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

const thisBoot = "boot-1"

// rig is a node with simulated GPUs and real records of claims.
type rig struct {
	*Offer
	machine  *model.Machine
	library  *nvml.Library
	client   *model.Session
	dir      string
	records  *journal.Journal
	preparer *prepare.Preparer
	logger   klog.Logger
	health   patients

	mu sync.Mutex
	// live: the machine itself is discovered.
	live bool
	// silent is a GPU that does not answer, nil for none.
	silent *gpu.GPU
	// What is discovered else, and what cannot be read of it.
	node     gpu.Node
	problems []error
	// set is what is to be published, nil for nothing yet.
	set      *resourceslice.DriverResources
	warnings []string
}

func newRig(t testing.TB, machine string, changes ...func(*Options)) *rig {
	t.Helper()
	r := &rig{machine: fixture.Machine(t, fixture.File(t, machine)), node: fixture.Node(t, machine), dir: t.TempDir()}
	r.library, r.client = fixture.Client(t, r.machine)
	r.logger = ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	var err error
	r.records, err = journal.Open(filepath.Join(r.dir, "claims"))
	must(t, err)
	locks, err := lock.Open(filepath.Join(r.dir, "locks"))
	must(t, err)
	specs, err := cdi.NewDirectory(filepath.Join(r.dir, "cdi"), fixture.Driver)
	must(t, err)
	r.preparer = prepare.New(prepare.Options{
		Journal: r.records, CDI: specs, Locks: locks, Claims: noClaims{}, Phases: noClaims{},
		Driver: fixture.Driver, Pool: fixture.NodeName, BootID: thisBoot, ReleaseWait: time.Millisecond,
	})
	options := Options{
		Driver: fixture.Driver, NodeName: fixture.NodeName, Claims: r.preparer, Publisher: r, Events: r, Health: &r.health, Client: apiserver.New(),
		CheckMPS: func() error { return nil },
	}
	for _, change := range changes {
		change(&options)
	}
	r.Offer = New(options)
	return r
}

// start is Start with what the log says.
func (r *rig) start(t testing.TB) (context.Context, error) {
	ctx := klog.NewContext(t.Context(), r.logger)
	return ctx, r.Start(ctx, Hardware{GPUs: r, Edits: &fixture.Edits{}, Tools: prepare.Tools{MIG: r.library, Modes: r.library}})
}

// watch starts the offer and keeps it right until the test ends, in a bubble of time.
func (r *rig) watch(t *testing.T) {
	t.Helper()
	ctx, err := r.start(t)
	must(t, err)
	fixture.Background(ctx, t, r.Watch)
}

// follow follows the policies until the test ends, and returns when they are known.
func (r *rig) follow(t *testing.T) {
	t.Helper()
	fixture.Background(klog.NewContext(t.Context(), r.logger), t, r.Run)
	fixture.Eventually(t, "the policies", func() error {
		if _, _, known := r.policies.get(); !known {
			return errors.New("they are not known")
		}
		return nil
	})
}

// said is everything that was logged.
func (r *rig) said() string { return r.logger.GetSink().(ktesting.Underlier).GetBuffer().String() }

// Discover implements GPUs.
func (r *rig) Discover() (gpu.Node, []error, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	node, problems := r.node, r.problems
	if r.live {
		var err error
		if node, problems, err = r.library.Discover(); err != nil {
			return node, problems, err
		}
	}
	if r.silent != nil {
		node.GPUs = slices.DeleteFunc(slices.Clone(node.GPUs), func(g gpu.GPU) bool { return g.UUID == r.silent.UUID })
		problems = append(problems, &nvml.UnreadableError{Index: r.silent.Index, Err: nvml.ErrSilent})
	}
	return node, problems, nil
}

// Refresh implements GPUs.
func (r *rig) Refresh(gpus []gpu.GPU) ([]gpu.GPU, error) {
	r.mu.Lock()
	silent := r.silent
	r.mu.Unlock()
	if silent != nil && slices.ContainsFunc(gpus, func(g gpu.GPU) bool { return g.UUID == silent.UUID }) {
		return gpus, nvml.ErrSilent
	}
	return r.library.Refresh(gpus)
}

// silence has a GPU not answer, or none.
func (r *rig) silence(g *gpu.GPU) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silent = g
}

// Persistent implements GPUs.
func (r *rig) Persistent() (bool, error) { return r.library.Persistent() }

// Rest implements GPUs.
func (r *rig) Rest() (bool, error) { return r.library.Rest() }

// discovers changes what is discovered.
func (r *rig) discovers(gpus []gpu.GPU, problems ...error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.node.GPUs, r.problems = gpus, problems
}

// Set implements Publisher.
func (r *rig) Set(resources resourceslice.DriverResources) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.set = &resources
}

// WarnNode implements Events.
func (r *rig) WarnNode(reason, sentence string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.warnings = append(r.warnings, reason+": "+sentence)
}

// warned are the Events about the node.
func (r *rig) warned() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.warnings, "\n")
}

// devices are those that are to be published.
func (r *rig) devices() []resourceapi.Device {
	var all []resourceapi.Device
	for _, slice := range r.toPublish().Pools[fixture.NodeName].Slices {
		all = append(all, slice.Devices...)
	}
	return all
}

func (r *rig) toPublish() *resourceslice.DriverResources {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.set
}

// tainted are the taints of a device that is to be published, as key=value:effect.
func (r *rig) tainted(name string) (taints []string) {
	for _, device := range r.devices() {
		for _, taint := range device.Taints {
			if device.Name == name {
				taints = append(taints, fmt.Sprintf("%s=%s:%s", taint.Key, taint.Value, taint.Effect))
			}
		}
	}
	return taints
}

// offered are the names of the devices that are to be published.
func (r *rig) offered() []string {
	var names []string
	for _, device := range r.devices() {
		names = append(names, device.Name)
	}
	return names
}

// patients are GPUs of whose health a test says what is known.
type patients struct {
	mu      sync.Mutex
	records map[string]health.Record
	missing map[string]error
	seen    map[string]gpu.GPU
	// repaired are the last times.
	repaired map[string]time.Time
}

func (p *patients) See(present []gpu.GPU, missing map[string]error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.missing = missing
	if p.seen == nil {
		p.seen = map[string]gpu.GPU{}
	}
	for _, g := range present {
		p.seen[g.UUID] = g
	}
}

func (p *patients) Remembered() []gpu.GPU {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.seen))
}

func (p *patients) Record(uuid string) health.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.records[uuid]
}

func (p *patients) Repaired(times map[string]time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.repaired = times
}

func (p *patients) repairedAt(uuid string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.repaired[uuid]
}

func (p *patients) set(uuid string, faults ...health.Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.records = map[string]health.Record{uuid: {Faults: faults}}
}

// noClaims are an API server's and a clock of phases for who prepares none.
type noClaims struct{}

func (noClaims) Get(context.Context, types.NamespacedName) (*resourceapi.ResourceClaim, error) {
	return nil, apiserver.ErrAway
}
func (noClaims) ObservePhase(string, string, time.Duration) {}

// after lets that much time pass.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
