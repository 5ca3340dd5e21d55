// Package prepare turns an allocated claim into what its containers need, and
// takes it back. It owns the order of effects, so that a crash at any point
// leaves a state from which the next start recovers. It never publishes
// devices and never talks to kubelet.
//
// It reads from the top: Prepare (prepare.go) makes a plan of the claim (plan.go, with
// assignment.go for a result and config.go and sharing.go for opaque configurations),
// holds the GPUs (hold.go), carries the plan out (transaction.go, inspect.go; work.go
// makes steps of what the record names) and publishes the result to the runtime
// (publish.go). How a shape is prepared is in preparation.go, with a file for each base;
// how a device is shared is in timeslice.go and mps.go. Unprepare (unprepare.go) undoes
// what the record names, and Reconcile (recovery.go) what nobody asked to be undone.
package prepare

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/tracing"
)

// Claims reads claims from the API server. A claim that does not exist is an
// error for which apierrors.IsNotFound holds.
type Claims interface {
	Get(ctx context.Context, name types.NamespacedName) (*resourceapi.ResourceClaim, error)
}

// Edits tells what a container needs to use GPUs.
type Edits interface {
	Common() (cdispec.ContainerEdits, error)
	GPU(uuid string) (cdispec.ContainerEdits, error)
	// Partition is a MIG device, named by its GPU and NVML's IDs.
	Partition(uuid string, instance, compute int) (cdispec.ContainerEdits, error)
	// Fit reports whether a specification that was made of these is still what containers need.
	Fit(written cdispec.Spec) (bool, error)
}

// Locks serialises work on a key among goroutines and among processes: during
// a rolling update, two plugins serve one node.
type Locks interface {
	Lock(ctx context.Context, keys ...string) (unlock func(), err error)
}

// Phases records how long a part of an operation took.
type Phases interface {
	ObservePhase(operation, phase string, duration time.Duration)
}

// Node is what the driver knows of its node at one time.
type Node struct {
	Pool  Pool
	Edits Edits
	Tools
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
	// BootID tells records of this boot from those of an earlier one, whose
	// containers and CDI files are gone.
	BootID string
	// ReleaseWait is how long a claim waits for kubelet to release a GPU that
	// another claim still holds.
	ReleaseWait time.Duration
	// GoneWait is how long Reconcile leaves a claim that is gone to kubelet,
	// which may still be stopping its containers. Longer than ReleaseWait, it leaves
	// the decision to the claim that needs the GPU.
	GoneWait time.Duration
}

// Preparer prepares and unprepares claims. It is safe for concurrent use: work
// on different claims and GPUs runs in parallel.
type Preparer struct {
	Options
	node atomic.Pointer[Node]
	gone gone
	// noDriver is set while the node is known to have no driver.
	noDriver atomic.Bool
	// looked is closed by the first SetNode or NoDriver.
	looked   chan struct{}
	lookOnce sync.Once
	// damaged holds a token when a record was found unusable.
	damaged chan struct{}
}

// New returns a Preparer that refuses claims until SetNode is called.
func New(options Options) *Preparer {
	return &Preparer{Options: options, looked: make(chan struct{}), damaged: make(chan struct{}, 1)}
}

// SetNode replaces what the node offers.
func (p *Preparer) SetNode(node Node) {
	p.node.Store(&node)
	p.lookOnce.Do(func() { close(p.looked) })
}

// NoDriver tells that the NVIDIA driver was looked for and that none works: until SetNode,
// pods end without it.
func (p *Preparer) NoDriver() {
	p.noDriver.Store(true)
	p.lookOnce.Do(func() { close(p.looked) })
}

// Damaged tells that a record was found unusable: Reconcile has to put it back, or
// to prepare its claim anew, which nothing else guards the GPUs of until then.
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
