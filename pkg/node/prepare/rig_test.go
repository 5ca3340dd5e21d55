package prepare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2/ktesting"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/lock"
	"github.com/mica-gpu/mica/test/fixture"
)

const (
	thisBoot = "boot-1"
	gpuCount = 8
)

// rig is a node with eight GPUs: real files, and an API server that holds claims.
type rig struct {
	dir   string
	api   *api
	edits *fixture.Edits
	boot  string
}

func newRig(t testing.TB) *rig {
	t.Helper()
	return &rig{dir: t.TempDir(), api: &api{}, edits: &fixture.Edits{}, boot: thisBoot}
}

// run returns a node with a running plugin.
func run(t testing.TB) (*rig, *Preparer) {
	t.Helper()
	r := newRig(t)
	return r, r.start(t)
}

// start is the start of a plugin process on the node.
func (r *rig) start(t testing.TB, changes ...func(*Options)) *Preparer {
	t.Helper()
	records, err := journal.Open(r.claimsDir())
	must(t, err)
	locks, err := lock.Open(filepath.Join(r.dir, "locks"))
	must(t, err)
	specs, err := cdi.NewDirectory(r.cdiDir(), fixture.Driver)
	must(t, err)
	options := Options{
		Journal: records, CDI: specs, Locks: locks, Claims: r.api, Phases: noPhases{},
		Driver: fixture.Driver, Pool: fixture.NodeName, BootID: r.boot,
		ReleaseWait: time.Millisecond,
	}
	for _, change := range changes {
		change(&options)
	}
	preparer := New(options)
	preparer.SetNode(Node{Pool: pool(), Edits: r.edits})
	return preparer
}

func (r *rig) claimsDir() string { return filepath.Join(r.dir, "claims") }
func (r *rig) cdiDir() string    { return filepath.Join(r.dir, "cdi") }

func (r *rig) record(claim *resourceapi.ResourceClaim) string {
	return filepath.Join(r.claimsDir(), string(claim.UID)+".json")
}

// spec is the path of a claim's CDI file.
func (r *rig) spec(claim *resourceapi.ResourceClaim) string {
	return filepath.Join(r.cdiDir(), "mica-"+fixture.Driver+"_"+string(claim.UID)+".json")
}

// uids lists the claims that have a file in the directory. Whatever else is in
// it is listed by its name.
func uids(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var found []string
	for _, entry := range entries {
		if entry.IsDir() || strings.HasPrefix(entry.Name(), ".") {
			continue // what a process is writing
		}
		name := strings.TrimPrefix(entry.Name(), "mica-"+fixture.Driver+"_")
		found = append(found, strings.TrimSuffix(name, ".json"))
	}
	return found
}

// expect checks that exactly these claims have a record and a CDI file, and
// that a runtime finds each recorded device.
func (r *rig) expect(t testing.TB, claims ...*resourceapi.ResourceClaim) {
	t.Helper()
	want := []string{}
	for _, claim := range claims {
		want = append(want, string(claim.UID))
	}
	slices.Sort(want)
	if got := uids(t, r.claimsDir()); !slices.Equal(got, want) {
		t.Errorf("records of %q, want %q", got, want)
	}
	if got := uids(t, r.cdiDir()); !slices.Equal(got, want) {
		t.Errorf("CDI files of %q, want %q", got, want)
	}
	cache, err := cdilib.NewCache(cdilib.WithSpecDirs(r.cdiDir()), cdilib.WithAutoRefresh(false))
	must(t, err)
	for _, claim := range claims {
		for _, result := range claim.Status.Allocation.Devices.Results {
			id := fmt.Sprintf("%s/claim=%s-%s", fixture.Driver, claim.UID, result.Device)
			if result.ShareID != nil {
				id += "-" + string(*result.ShareID)
			}
			if result.Driver == fixture.Driver && cache.GetDevice(id) == nil {
				t.Errorf("the runtime does not find %s", id)
			}
		}
	}
}

// claim is allocated these GPUs, and known to the API server.
func (r *rig) claim(name string, minors ...int) *resourceapi.ResourceClaim {
	var results []resourceapi.DeviceRequestAllocationResult
	for _, minor := range minors {
		results = append(results, fixture.Result("gpus", device(minor)))
	}
	claim := fixture.Claim(name, results...)
	r.api.put(claim)
	return claim
}

func device(minor int) string { return fmt.Sprint("gpu-", minor) }
func uuid(minor int) string   { return fmt.Sprint("GPU-", minor) }

func pool() Pool {
	var shapes []gpu.Shape
	for minor := range gpuCount {
		shapes = append(shapes, gpu.Whole{GPU: gpu.GPU{Minor: minor, UUID: uuid(minor)}})
	}
	return NewPool(fixture.Driver, fixture.NodeName, shapes)
}

func testContext(t testing.TB) context.Context {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	return ctx
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func prepare(t testing.TB, p *Preparer, claim *resourceapi.ResourceClaim) []journal.Device {
	t.Helper()
	devices, err := p.Prepare(testContext(t), claim)
	must(t, err)
	return devices
}

// refused is a prepare whose error has these parts.
func refused(t testing.TB, p *Preparer, claim *resourceapi.ResourceClaim, parts ...string) {
	t.Helper()
	_, err := p.Prepare(within(t), claim)
	fixture.Sentence(t, err, parts...)
}

func unprepare(t testing.TB, p *Preparer, claim *resourceapi.ResourceClaim) {
	t.Helper()
	must(t, p.Unprepare(testContext(t), claim.UID))
}

func reconcile(t testing.TB, p *Preparer) {
	t.Helper()
	must(t, p.Reconcile(testContext(t)))
}

// api holds claims by name, as the API server does.
type api struct {
	mu     sync.Mutex
	claims map[types.NamespacedName]*resourceapi.ResourceClaim
	down   error
}

var errAway = errors.New("connection refused")

func name(claim *resourceapi.ResourceClaim) types.NamespacedName {
	return types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
}

func (a *api) put(claim *resourceapi.ResourceClaim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.claims == nil {
		a.claims = map[types.NamespacedName]*resourceapi.ResourceClaim{}
	}
	a.claims[name(claim)] = claim.DeepCopy()
}

func (a *api) remove(claim *resourceapi.ResourceClaim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.claims, name(claim))
}

func (a *api) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down = err
}

// Get implements Claims.
func (a *api) Get(_ context.Context, name types.NamespacedName) (*resourceapi.ResourceClaim, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down != nil {
		return nil, a.down
	}
	claim, found := a.claims[name]
	if !found {
		return nil, apierrors.NewNotFound(resourceapi.Resource("resourceclaims"), name.Name)
	}
	return claim.DeepCopy(), nil
}

type noPhases struct{}

func (noPhases) ObservePhase(string, string, time.Duration) {}
