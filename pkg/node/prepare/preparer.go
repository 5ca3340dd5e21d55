// Package prepare turns an allocated claim into what its containers need, and takes it
// back. It owns the order of effects: after a crash at any point, the next start recovers.
// It never publishes devices and never talks to kubelet.
//
// Prepare (prepare.go) plans the claim (plan.go; config.go and sharing.go for opaque
// configurations), holds the GPUs (hold.go), does the steps (transaction.go, step.go) and
// publishes the result to the runtime (publish.go). shape.go has the table of shapes and
// steps, with a file for each: whole.go, partition.go, makepartition.go, timeslice.go and
// mps.go. Unprepare (unprepare.go) undoes the recorded steps, and Reconcile (recovery.go)
// those of claims that are gone. The ledger (ledger.go) keeps the records.
//
// Only Prepare, Unprepare and Reconcile name the claim in an error. Errors below them name
// the request and the device.
package prepare

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/wake"
	"github.com/mica-gpu/mica/pkg/tracing"
)

// Claims reads claims from the API server. For a claim that does not exist,
// apierrors.IsNotFound holds for the error.
type Claims interface {
	Get(ctx context.Context, name types.NamespacedName) (*resourceapi.ResourceClaim, error)
}

// Locks serializes work on a key among goroutines and among processes: during a rolling
// update, two plugins serve one node.
type Locks interface {
	Lock(ctx context.Context, keys ...string) (unlock func(), err error)
}

// Phases records the duration of a part of an operation.
type Phases interface {
	ObservePhase(operation, phase string, duration time.Duration)
}

// Options are what a Preparer works with. All fields are required.
type Options struct {
	Journal *journal.Journal
	CDI     *cdi.Directory
	Locks   Locks
	Claims  Claims
	Phases  Phases
	// Driver and Pool select the results of a claim that are prepared here.
	Driver, Pool string
	// BootID distinguishes records of this boot from those of an earlier one, whose
	// containers and CDI files are gone.
	BootID string
	// ReleaseWait is how long a claim waits for kubelet to release a GPU that another
	// claim still holds.
	ReleaseWait time.Duration
	// GoneWait is how long Reconcile leaves a claim that is gone to kubelet, which may
	// still be stopping its containers. It is longer than ReleaseWait, so that a claim
	// that needs the GPU decides first.
	GoneWait time.Duration
}

// Preparer prepares and unprepares claims. It is safe for concurrent use: work on
// different claims and GPUs runs in parallel.
type Preparer struct {
	Options
	ledger
	node atomic.Pointer[Node]
	gone gone
	// noDriver is set while the node is known to have no driver.
	noDriver atomic.Bool
	// looked is closed by the first SetNode or NoDriver.
	looked   chan struct{}
	lookOnce sync.Once
}

// New returns a Preparer that refuses claims until SetNode is called.
func New(options Options) *Preparer {
	ledger := ledger{options.Journal, options.CDI, options.BootID, wake.New()}
	return &Preparer{Options: options, ledger: ledger, gone: gone{since: map[types.UID]time.Time{}}, looked: make(chan struct{})}
}

// SetNode replaces what the node offers.
func (p *Preparer) SetNode(node Node) {
	p.node.Store(&node)
	p.lookOnce.Do(func() { close(p.looked) })
}

// NoDriver records that no NVIDIA driver works on the node: until SetNode, pods end
// without it.
func (p *Preparer) NoDriver() {
	p.noDriver.Store(true)
	p.lookOnce.Do(func() { close(p.looked) })
}

// Damaged receives a token when a record was found unusable. Reconcile then restores the
// record or prepares its claim again; until it does, nothing else guards the claim's GPUs.
func (p *Preparer) Damaged() <-chan struct{} { return p.damaged }

// readLimit bounds one question to the API server.
const readLimit = 5 * time.Second

// takeOverLimit bounds the release of a claim that is gone.
const takeOverLimit = 5 * time.Second

func claimKey(claim types.UID) string { return "claim-" + string(claim) }

// lockGPUs keeps effects on a GPU in order, among processes too.
func (p *Preparer) lockGPUs(ctx context.Context, uuids []string) (unlock func(), err error) {
	keys := make([]string, len(uuids))
	for i, uuid := range uuids {
		keys[i] = "gpu-" + uuid
	}
	return p.Locks.Lock(ctx, keys...)
}

// phaseTimer measures consecutive phases of one operation.
type phaseTimer struct {
	phases    Phases
	operation string
	last      time.Time
}

func (p *Preparer) timer(operation string) *phaseTimer {
	return &phaseTimer{phases: p.Phases, operation: operation, last: time.Now()}
}

func (t *phaseTimer) phase(ctx context.Context, name string) {
	now := time.Now()
	t.phases.ObservePhase(t.operation, name, now.Sub(t.last))
	tracing.Past(ctx, name, t.last, now)
	t.last = now
}
