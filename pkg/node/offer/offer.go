// Package offer decides what a node offers of its GPUs, and keeps that right: it looks at
// the GPUs, leaves out what was made for claims, follows the GPUPolicies, and withdraws
// what they no longer offer. It never writes slices and never changes a GPU.
package offer

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/prepare"
	"github.com/mica-gpu/mica/pkg/slice"
)

// rereads are between two looks at GPUs that cannot be read. They get long: one that is
// broken for good is asked for ever.
var rereads = wait.Backoff{Duration: time.Second, Factor: 2, Cap: time.Minute, Steps: math.MaxInt}

// lookInterval is how long what somebody else does to MIG may go unseen. A claim
// that meets it in between is told by NVML.
const lookInterval = 10 * time.Second

// GPUs are a node's, as its open NVIDIA driver tells of them.
type GPUs interface {
	// Discover reads the GPUs. Those that cannot be read are reported in
	// unreadable and left out.
	Discover() (node gpu.Node, unreadable []error, err error)
	// Refresh reads of GPUs that were discovered what changes while the driver
	// is loaded: the MIG mode and the instances. GPUs that cannot be read are
	// returned as they were given.
	Refresh(gpus []gpu.GPU) ([]gpu.GPU, error)
}

// Hardware is what is offered, and what claims need that are prepared with it.
type Hardware struct {
	GPUs  GPUs
	Edits prepare.Edits
	Tools prepare.Tools
}

// Claims are those of this node.
type Claims interface {
	// Held are the devices that claims have, or may have.
	Held(ctx context.Context) ([]journal.Device, error)
	// SetNode replaces what claims are prepared with.
	SetNode(node prepare.Node)
}

// Publisher publishes what it was given last.
type Publisher interface {
	Set(resources resourceslice.DriverResources)
}

// Events tell users what they have to know.
type Events interface {
	WarnNode(reason, sentence string)
}

// Options configure an Offer. All fields but Policies are required.
type Options struct {
	// Driver is the driver's name, NodeName that of the node and of its pool.
	Driver, NodeName string
	Claims           Claims
	Publisher        Publisher
	Events           Events
	// Client reads the node's labels.
	Client kubernetes.Interface
	// Policies are the cluster's; nil where the node is to go by none.
	Policies Policies
	// CheckMPS says what the node lacks for MPS, and what to do.
	CheckMPS func() error
}

// Offer is what a node offers. New has no effects; Start, Watch and Run have.
type Offer struct {
	Options
	policies *policyView
	report   *report
	// reconsider wakes Watch up, as when a policy has changed.
	reconsider chan struct{}
	// changed holds a token when claims can be prepared with something else.
	changed chan struct{}
	// passing tells that shapes are only offered because claims hold them.
	passing atomic.Bool

	// What follows belongs to who runs Start and then Watch.

	hardware Hardware
	// seen is the node as it was read last, with every instance; unread says which of
	// its GPUs could not be read, empty when all could.
	seen   gpu.Node
	unread string
	// offered are the identities of the shapes that are offered.
	offered []string
	// applied and history are what the policies said, until is when the offer
	// changes by itself, zero for never.
	applied applied
	history history
	until   time.Time
}

// New returns an Offer of nothing.
func New(options Options) *Offer {
	o := &Offer{
		Options:    options,
		report:     &report{client: options.Policies, nodeName: options.NodeName, changed: make(chan struct{}, 1)},
		reconsider: make(chan struct{}, 1),
		changed:    make(chan struct{}, 1),
	}
	o.policies = newPolicyView(options.Policies, options.Client, options.NodeName, func() { wake(o.reconsider) })
	return o
}

func wake(sleeper chan<- struct{}) {
	select {
	case sleeper <- struct{}{}:
	default: // it has not yet seen the last one
	}
}

// Run follows the policies, and says what the node makes of them, until ctx ends.
func (o *Offer) Run(ctx context.Context) error {
	if o.Policies == nil {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return o.policies.run(ctx) })
	group.Go(func() error { return o.report.run(ctx) })
	return group.Wait()
}

// Start offers the GPUs of an open NVIDIA driver. It fails when there is none.
func (o *Offer) Start(ctx context.Context, hardware Hardware) error {
	o.hardware = hardware
	return o.offerAll(ctx)
}

// Changed tells that claims can be prepared with something else than before.
func (o *Offer) Changed() <-chan struct{} { return o.changed }

// Released tells that a claim has ended: it may be the last that held a shape that is
// withdrawn.
func (o *Offer) Released() {
	if o.passing.Load() {
		wake(o.reconsider)
	}
}

// Watch keeps right what was started, until ctx ends: it looks again at GPUs that could
// not be read, until all can be, at what somebody else does to MIG, at policies that
// change, and at shapes that are withdrawn.
func (o *Offer) Watch(ctx context.Context) error {
	next := rereads.DelayFunc()
	reread := next()
	said := ""
	for {
		pause, look := o.nextLook(), o.offerChanges
		if o.unread != "" && reread < pause {
			pause, look = reread, o.offerAll
			reread = next()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-o.reconsider:
			look = o.offerChanges
		case <-time.After(pause):
		}
		err := look(ctx)
		switch {
		case err == nil:
			said = ""
		case err.Error() != said && ctx.Err() == nil:
			said = err.Error()
			klog.FromContext(ctx).Error(err, "The GPUs cannot be read again; what was seen last stays offered")
		}
	}
}

// never is a wait that something else ends.
const never = time.Duration(math.MaxInt64)

// nextLook is how long the offer may be left alone. GPUs that cannot be read are
// asked for by all of them, and more slowly.
func (o *Offer) nextLook() time.Duration {
	pause := never
	// Another process may have released what was passing, and somebody may have
	// installed what a policy lacked.
	if o.unread == "" && (partitionable(o.seen) || o.passing.Load() || o.applied.refused) {
		pause = lookInterval
	}
	if !o.until.IsZero() {
		pause = min(pause, max(time.Until(o.until), 0))
	}
	return pause
}

// partitionable tells whether somebody may do something to MIG on a node.
func partitionable(node gpu.Node) bool {
	return slices.ContainsFunc(node.GPUs, func(g gpu.GPU) bool { return g.MIG != gpu.MIGUnsupported })
}

// offerAll reads everything and offers it.
func (o *Offer) offerAll(ctx context.Context) error {
	found, err := o.discover(ctx, o.lookAtAll)
	if err != nil {
		return err
	}
	unread := ""
	if err := found.unreadable; err != nil {
		if unread = err.Error(); unread != o.unread {
			klog.FromContext(ctx).Error(err, "A GPU cannot be read and is not offered; the plugin keeps looking")
		}
	}
	o.seen, o.unread = found.node, unread
	sayPredictions(ctx, o.seen.GPUs)
	o.offerFound(ctx, found)
	return nil
}

// offerChanges reads what can change of GPUs that have been read: the modes and
// instances of MIG, of which NVML tells nobody.
func (o *Offer) offerChanges(ctx context.Context) error {
	found, err := o.discover(ctx, o.lookAgain)
	if err != nil {
		return err
	}
	o.seen = found.node
	o.offerFound(ctx, found)
	return found.unreadable
}

// offerFound offers what was found and the policies say. It does nothing when the same is
// offered already.
func (o *Offer) offerFound(ctx context.Context, found findings) {
	node := found.free
	policies, known := o.policiesFor(ctx, node)
	history, next := o.history.next(node.GPUs, policies, found.held, time.Now())
	if known {
		o.history, o.until = history, next.until
		o.passing.Store(next.passing)
	}
	offered := identities(next)
	if !known {
		offered = append(offered, "unpublished")
	}
	if o.offered != nil && slices.Equal(offered, o.offered) {
		return
	}
	o.Claims.SetNode(prepare.Node{
		Pool:  prepare.NewPool(o.Driver, o.NodeName, next.shapes),
		Edits: o.hardware.Edits,
		Tools: o.hardware.Tools,
	})
	o.offered = offered
	for _, err := range next.unknown {
		klog.FromContext(ctx).Error(err, "A device that a claim has is not offered")
	}
	wake(o.changed)
	if !known {
		return // claims that are prepared can be taken back; new ones come when it is published
	}
	klog.FromContext(ctx).Info("Offering GPUs", "driverVersion", node.DriverVersion, "gpus", len(node.GPUs), "devices", len(next.shapes), "tainted", len(next.taints))
	sayObstacles(ctx, node.GPUs)
	o.Publisher.Set(resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{o.NodeName: slice.Pool(node, next.shapes, next.taints)}})
}
