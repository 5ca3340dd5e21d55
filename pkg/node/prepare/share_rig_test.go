package prepare

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/mps"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
)

// Shared devices of the simulated machine.
const (
	slicedGPU   = "gpu-0-timeslice"
	servedGPU   = "gpu-0-mps"
	slicedSmall = small0 + "-timeslice"
	servedBig   = big0 + "-mps"
	// several0 is GPU 0 as a device for several claims, which has the name of the whole GPU.
	several0 = whole0 + several
	several  = " for several"
)

// shareRig is a node with a machine whose GPUs are offered in every shape.
type shareRig struct {
	*migRig
	intervals *intervals
	daemons   *daemons
	policy    gpu.Policy
}

func newShareRig(t testing.TB) *shareRig {
	t.Helper()
	return newShareRigWith(t, gpu.LongInterval)
}

// runShares returns a node with a running plugin.
func runShares(t testing.TB) (*shareRig, *Preparer) {
	t.Helper()
	r := newShareRig(t)
	return r, r.startShares(t, nil)
}

func newShareRigWith(t testing.TB, interval gpu.Interval) *shareRig {
	t.Helper()
	r := &shareRig{migRig: newMIGRigOf(t, 2), intervals: &intervals{}}
	r.daemons = &daemons{modes: r.library, exists: r.migDeviceExists}
	r.policy = gpu.Policy{
		Whole: true, MIG: true, Consumable: &gpu.ConsumableShares{By: gpu.ByCount, Count: 4},
		TimeSlicing: &gpu.TimeSlicing{Replicas: 4, Interval: interval},
		MPS:         &gpu.MPS{Clients: 4},
		SharedProfiles: map[string]gpu.Sharing{
			"1g.10gb": gpu.TimeSlicing{Replicas: 4, Interval: gpu.DefaultInterval}, "3g.40gb": gpu.MPS{Clients: 4},
		},
	}
	return r
}

func (r *shareRig) tools() Tools {
	return Tools{MIG: r.library, Modes: r.library, TimeSlices: r.intervals, Daemons: r.daemons}
}

// startShares is the start of a plugin process that has found its GPUs. around comes
// between it and what changes them.
func (r *shareRig) startShares(t testing.TB, around func(Tools) Tools, changes ...func(*Options)) *Preparer {
	t.Helper()
	p := r.start(t, changes...)
	p.node.Store(nil)
	shapes := gpu.Shapes(r.free(t, p).GPUs, func(gpu.GPU) gpu.Policy { return r.policy })
	tools := r.tools()
	if around != nil {
		tools = around(tools)
	}
	p.SetNode(Node{Pool: NewPool(fixture.Driver, fixture.NodeName, shapes), Edits: r.edits, Tools: tools})
	return p
}

func (r *shareRig) migDeviceExists(uuid string) bool {
	return slices.ContainsFunc(r.instances(), func(text string) bool { return strings.HasSuffix(text, " "+uuid) })
}

// sharing is a claim with a share of each device, a request each.
func (r *shareRig) sharing(name string, devices ...string) *resourceapi.ResourceClaim {
	var results []resourceapi.DeviceRequestAllocationResult
	for i, device := range devices {
		published, shared := strings.CutSuffix(device, several)
		result := fixture.Result(fmt.Sprint("r", i), published)
		if shared || strings.HasSuffix(device, "-timeslice") || strings.HasSuffix(device, "-mps") {
			id := types.UID(fmt.Sprintf("share-%s-%d", name, i))
			result.ShareID = &id
			result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
				fixture.Driver + "/memory": resource.MustParse("10Gi"), "cores": resource.MustParse("25"),
			}
		}
		results = append(results, result)
	}
	claim := fixture.Claim(name, results...)
	r.api.put(claim)
	return claim
}

// expectShares checks that the node is as the records of these claims, and no others,
// say.
func (r *shareRig) expectShares(t testing.TB, p *Preparer, claims ...*resourceapi.ResourceClaim) {
	t.Helper()
	r.expectMIG(t, p, nil, claims...)
	held, err := p.Held(testContext(t))
	must(t, err)
	wantIntervals, wantDaemons := map[string]gpu.Interval{}, map[string]mps.Daemon{}
	wantModes := map[string]string{}
	for _, device := range held {
		if hasStep(device, setTimeSlice) {
			wantIntervals[device.UUID] = dataOf[timeSlice](device, setTimeSlice).Interval
		}
		if hasStep(device, runDaemon) {
			wantDaemons[dataOf[client](device, runDaemon).Daemon] = r.wanted(held, dataOf[client](device, runDaemon).Daemon)
			if device.Form.Entire() {
				wantModes[device.UUID] = nvml.ExclusiveProcess
			}
		}
	}
	if got := r.intervals.all(); !maps.Equal(got, wantIntervals) {
		t.Errorf("got the intervals %v, want %v", got, wantIntervals)
	}
	if got := r.daemons.all(); !reflect.DeepEqual(got, wantDaemons) {
		t.Errorf("got the daemons %v, want %v", got, wantDaemons)
	}
	for _, g := range r.machine.GPUs() {
		want := nvml.DefaultComputeMode
		if mode, ok := wantModes[g.UUID]; ok {
			want = mode
		}
		if mode, err := r.library.ComputeMode(g.UUID); err != nil || mode != want {
			t.Errorf("GPU %d: got the compute mode %s, %v, want %s", g.Index, mode, err, want)
		}
	}
	r.oneShape(t, held)
}

// wanted is the daemon of shares.
func (r *shareRig) wanted(held []journal.Device, id string) mps.Daemon {
	daemon := mps.Daemon{ID: id, MultiUser: true}
	for _, device := range held {
		if dataOf[client](device, runDaemon).Daemon != id {
			continue
		}
		uuid := device.DeviceUUID()
		if !slices.Contains(daemon.Devices, uuid) {
			daemon.Devices = append(daemon.Devices, uuid)
		}
	}
	return daemon
}

// oneShape finds no GPU in two shapes that exclude each other.
func (r *shareRig) oneShape(t testing.TB, held []journal.Device) {
	t.Helper()
	for i, a := range held {
		for _, b := range held[:i] {
			one, other := holdingOf(a), holdingOf(b)
			if one.overlaps(other) && !one.coexists(other) {
				t.Errorf("both %s and %s are given to claims", a.Device, b.Device)
			}
		}
	}
}

// intervals are the time-slices that were set and are not the default.
type intervals struct {
	mu   sync.Mutex
	set  map[string]gpu.Interval
	fail error
}

// Set implements TimeSlices.
func (s *intervals) Set(_ context.Context, uuid string, interval gpu.Interval) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	if s.set == nil {
		s.set = map[string]gpu.Interval{}
	}
	s.set[uuid] = interval
	if interval == gpu.DefaultInterval {
		delete(s.set, uuid)
	}
	return nil
}

func (s *intervals) all() map[string]gpu.Interval {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.set)
}

// daemons run as long as they are wanted.
type daemons struct {
	modes   Modes
	exists  func(migUUID string) bool
	mu      sync.Mutex
	running map[string]mps.Daemon
	starts  int
	fail    error
}

// Start implements Daemons.
func (d *daemons) Start(_ context.Context, daemon mps.Daemon) error {
	for _, uuid := range daemon.Devices {
		if strings.HasPrefix(uuid, "GPU-") {
			if mode, err := d.modes.ComputeMode(uuid); err != nil || mode != nvml.ExclusiveProcess {
				return fmt.Errorf("GPU %s has the compute mode %s (%w)", uuid, mode, err)
			}
		} else if !d.exists(uuid) {
			return fmt.Errorf("there is no MIG device %q", uuid)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		return fmt.Errorf("start MPS control daemon %s: %w", daemon.ID, d.fail)
	}
	if other, runs := d.running[daemon.ID]; runs && !reflect.DeepEqual(other, daemon) {
		return fmt.Errorf("%w: %v, not %v", mps.ErrOther, other, daemon)
	}
	if d.running == nil {
		d.running = map[string]mps.Daemon{}
	}
	if !reflect.DeepEqual(d.running[daemon.ID], daemon) {
		d.starts++
	}
	d.running[daemon.ID] = daemon
	return nil
}

// Stop implements Daemons.
func (d *daemons) Stop(_ context.Context, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		return fmt.Errorf("stop MPS control daemon %s: %w", id, d.fail)
	}
	delete(d.running, id)
	return nil
}

// Edits implements Daemons.
func (d *daemons) Edits(id string, limits mps.Limits) cdispec.ContainerEdits {
	return cdispec.ContainerEdits{
		Env:    []string{fmt.Sprintf("TEST_MPS=%s,%d,%d", id, limits.MemoryBytes, limits.Cores)},
		Mounts: []*cdispec.Mount{{HostPath: "/mps/" + id, ContainerPath: "/mps"}},
	}
}

func (d *daemons) all() map[string]mps.Daemon {
	d.mu.Lock()
	defer d.mu.Unlock()
	running := maps.Clone(d.running)
	if running == nil {
		running = map[string]mps.Daemon{}
	}
	return running
}

// broken makes a fake fail from now on, nil to succeed again.
func (d *daemons) broken(reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = nil
	if reason != "" {
		d.fail = errors.New(reason)
	}
}
