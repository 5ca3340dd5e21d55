// Package offer decides what a node offers of its GPUs, and keeps that right: it looks at
// the GPUs, leaves out what was made for claims, follows the GPUPolicies, and withdraws
// what they no longer offer. It never writes slices and never changes a GPU.
package offer

import (
	"cmp"
	"context"
	"errors"
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
	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/pkg/node/prepare"
	"github.com/mica-gpu/mica/pkg/slice"
)

// rereads are between two looks at GPUs that cannot be read. They get long: one that is
// broken for good is asked for ever.
var rereads = wait.Backoff{Duration: time.Second, Factor: 2, Cap: time.Minute, Steps: math.MaxInt}

// lookInterval is how long it may go unseen that a GPU is lost, or what somebody else
// does to MIG, whose partitions NVML is asked for when a claim gets them. While NVML rests it
// is restInterval.
const lookInterval = 10 * time.Second

// GPUs are a node's, as its open NVIDIA driver tells of them.
type GPUs interface {
	// Discover reads the GPUs. Those that cannot be read are reported in
	// unreadable and left out.
	Discover() (node gpu.Node, unreadable []error, err error)
	// Refresh reads of GPUs that were discovered what changes while the driver
	// is loaded: the MIG mode, the instances, and the NVLinks. GPUs that cannot be read
	// are returned as they were given. The error is nvml.ErrGPULost, nvml.ErrSilent or
	// nvml.ErrGPUsChanged where they have to be discovered anew.
	Refresh(gpus []gpu.GPU) ([]gpu.GPU, error)
	// Persistent tells whether the driver keeps GPUs initialised that nobody uses.
	Persistent() (bool, error)
	// Rest lets go of the driver until the next call, and tells whether it did: not
	// while another call is under way.
	Rest() (resting bool, err error)
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
	// Seen notes which partitions of claims a look at GPUs has shown to be destroyed.
	Seen(ctx context.Context, gpus []gpu.GPU) error
	// SetNode replaces what claims are prepared with.
	SetNode(node prepare.Node)
}

// Health is that of the GPUs.
type Health interface {
	// See tells which GPUs there are: those that were read, and why others could not be, by UUID.
	See(present []gpu.GPU, missing map[string]error)
	// Remembered are GPUs that were seen, also by earlier processes.
	Remembered() []gpu.GPU
	// Record is what is known of a GPU.
	Record(uuid string) health.Record
	// Repaired tells when an administrator had repaired GPUs, by UUID.
	Repaired(times map[string]time.Time)
}

// Publisher publishes what it was given last.
type Publisher interface {
	Set(resources resourceslice.DriverResources)
}

// Events tell users what they have to know.
type Events interface {
	WarnNode(reason, sentence string)
}

// Options configure an Offer. All fields but Policies and Containers are required.
type Options struct {
	// Driver is the driver's name, NodeName that of the node and of its pool.
	Driver, NodeName string
	Claims           Claims
	Publisher        Publisher
	Events           Events
	Health           Health
	// Client reads the node's labels.
	Client kubernetes.Interface
	// Policies are the cluster's; nil where the node is to go by none.
	Policies Policies
	// CheckMPS says what the node lacks for MPS, and what to do.
	CheckMPS func() error
	// Containers say what a device plugin that was removed has left in use; nil where kubelet is
	// not asked.
	Containers Containers
	// IgnoreDevicePlugin offers GPUs also where a device plugin gives them out, or has given.
	IgnoreDevicePlugin bool
}

// Offer is what a node offers. New has no effects; Start, Watch and Run have.
type Offer struct {
	Options
	policies *policyView
	report   *report
	// reconsider wakes Watch up, as when a policy has changed.
	reconsider chan struct{}
	// used wakes Watch up to let the driver rest.
	used chan struct{}
	// changed holds a token when claims can be prepared with something else.
	changed chan struct{}
	// state is what State returns.
	state atomic.Pointer[State]
	// passing tells that shapes are only offered because claims hold them.
	passing atomic.Bool
	// restful tells that the driver may be let go of while no claim has a device.
	restful atomic.Bool

	// What follows belongs to who runs Start and then Watch.

	hardware Hardware
	// seen is the node as it was read last, with every instance; unread says which of
	// its GPUs could not be read, empty when all could.
	seen   gpu.Node
	unread string
	// missing are GPUs that were seen once and cannot be read now, and why. They stay offered,
	// tainted, because pods may have them, and their taint may have to evict those.
	missing []missingGPU
	// occupied tells that claims have devices, or may have.
	occupied bool
	// foreign are the GPUs with the instances that somebody else has surely made.
	foreign []gpu.GPU
	// fabric is what was last said of GPUs that wait for the fabric manager.
	fabric string
	// offered are the identities of the shapes that are offered, and saidWithheld is why
	// they are not published, empty where they are.
	offered      []string
	saidWithheld string
	// leftovers are what a device plugin has left in use, and saidTaken what was said last of
	// that and of a newer version's claims.
	leftovers leftovers
	saidTaken string
	// applied and history are what the policies said, until is when the offer
	// changes by itself, zero for never.
	applied applied
	history history
	// repairs are what the node's annotations say of repaired GPUs.
	repairs repairs
	// faults are what faults of GPUs mean, as the policy said that was done last.
	faults slice.FaultEffects
	// resets are the conditions for which it wants GPUs to be reset.
	resets health.ConditionSet
	until  time.Time
}

// New returns an Offer of nothing.
func New(options Options) *Offer {
	o := &Offer{
		Options:    options,
		report:     &report{client: options.Policies, nodeName: options.NodeName, changed: make(chan struct{}, 1)},
		reconsider: make(chan struct{}, 1),
		used:       make(chan struct{}, 1),
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

// State is what was seen at the last look, and what is offered of it.
type State struct {
	Node gpu.Node
	// Shapes are those that are offered.
	Shapes []gpu.Shape
	// Taints are those of the shapes, by name. Nobody changes them.
	Taints slice.Taints
	// Offered says of each shape its name, its GPU, how it is shared and its taints; then why
	// devices are not offered.
	Offered []string
	// Resets are the conditions for which the policy wants GPUs to be reset that no claim has.
	Resets health.ConditionSet
}

// State is for who looks for a fault. It is empty before the first look.
func (o *Offer) State() State {
	if state := o.state.Load(); state != nil {
		return *state
	}
	return State{}
}

// Reconsider has the offer looked at again, as when a GPU has become sick.
func (o *Offer) Reconsider() { wake(o.reconsider) }

// Used tells that somebody has asked the NVIDIA driver, which may rest again now.
func (o *Offer) Used() { wake(o.used) }

// Changed tells that claims can be prepared with something else than before.
func (o *Offer) Changed() <-chan struct{} { return o.changed }

// Released tells that a claim has ended: it may be the last that held a shape that is
// withdrawn.
func (o *Offer) Released() {
	if o.passing.Load() || o.restful.Load() {
		wake(o.reconsider)
	}
}

// Watch keeps right what was started, until ctx ends: it looks again at the GPUs, and at those
// that could not be read until all can be, at policies that change, and at shapes that are
// withdrawn.
func (o *Offer) Watch(ctx context.Context) error {
	next := rereads.DelayFunc()
	again := time.Now().Add(next())
	said := ""
	for {
		interval := lookInterval
		if o.rest(ctx) {
			interval = restInterval
		}
		pause, look := o.nextLook(interval), o.offerChanges
		if o.unread == "" {
			next = rereads.DelayFunc()
			again = time.Now().Add(next())
		} else if due := max(time.Until(again), 0); due <= pause {
			pause, look = due, o.offerAll
			again = time.Now().Add(due + next())
		}
		woken, err := o.wait(ctx, pause)
		if err != nil {
			return err
		}
		if woken {
			look = o.offerChanges
		}
		err = look(ctx)
		switch {
		case err == nil:
			said = ""
		case err.Error() != said && ctx.Err() == nil:
			said = err.Error()
			klog.FromContext(ctx).Error(err, "The GPUs cannot be read again; what was seen last stays offered")
		}
	}
}

// wait waits for so long, or until it is woken. Whenever the driver was used meanwhile, it rests
// again.
func (o *Offer) wait(ctx context.Context, pause time.Duration) (woken bool, err error) {
	over := time.After(pause)
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-o.reconsider:
			return true, nil
		case <-over:
			return false, nil
		case <-o.used:
			o.rest(ctx)
		}
	}
}

// nextLook is how long the offer may be left alone, at most so long.
func (o *Offer) nextLook(interval time.Duration) time.Duration {
	if o.until.IsZero() {
		return interval
	}
	return min(interval, max(time.Until(o.until), 0))
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
			klog.FromContext(ctx).Error(err, "A GPU cannot be read and gets no claims; the plugin keeps looking")
			o.Events.WarnNode(ReasonUnreadable, inOneLine(err)+": the GPU gets no claims until it answers; see the kernel's log for messages of NVRM, and reset or replace it")
		}
	}
	o.miss(found)
	o.seen, o.unread = found.node, unread
	sayPredictions(ctx, o.seen.GPUs)
	o.offerFound(ctx, found)
	return nil
}

// offerChanges reads what can change of GPUs that have been read, of which NVML tells nobody.
// After the loss, the silence or the arrival of a GPU it reads everything.
func (o *Offer) offerChanges(ctx context.Context) error {
	found, err := o.discover(ctx, o.lookAgain)
	if err != nil {
		return err
	}
	for _, change := range []error{nvml.ErrGPULost, nvml.ErrSilent, nvml.ErrGPUsChanged} {
		if errors.Is(found.unreadable, change) {
			return o.offerAll(ctx)
		}
	}
	o.seen = found.node
	o.offerFound(ctx, found)
	return found.unreadable
}

// offerFound offers what was found and the policies say. It does nothing when the same is
// offered already.
func (o *Offer) offerFound(ctx context.Context, found findings) {
	node := withMissing(found.free, o.missing)
	o.Health.See(found.node.GPUs, reasons(o.missing))
	o.occupied = len(found.held) > 0
	policies, withheld, known := o.policiesFor(ctx, node, found)
	history, next := o.history.next(node.GPUs, policies, found.held, time.Now())
	o.taint(next, node.GPUs)
	all := o.takenOf(found.node, found.held)
	next, inUse := withoutTaken(next, all, found.held), describeTaken(found.node.GPUs, all)
	if inUse != "" && len(next.shapes) == 0 {
		withheld = cmp.Or(withheld, errors.New(inUse))
	}
	if known {
		o.history, o.until = history, o.leftovers.until(next.until, time.Now())
		o.passing.Store(next.passing)
	}
	offered := identities(next)
	if !known {
		offered = append(offered, "unpublished")
	}
	if withheld != nil {
		offered = append(offered, withheld.Error())
	}
	if inUse != "" {
		offered = append(offered, inUse)
	}
	o.state.Store(&State{Node: found.node, Shapes: next.shapes, Taints: next.taints, Offered: offered, Resets: o.resets})
	if o.offered != nil && slices.Equal(offered, o.offered) {
		return
	}
	pool := prepare.NewPool(o.Driver, o.NodeName, o.readable(next.shapes))
	pool.Withheld, pool.InUse = withheld, inUse
	o.Claims.SetNode(prepare.Node{
		Pool:  pool,
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
	o.sayTaken(ctx, inUse)
	o.sayWithheld(ctx, withheld)
	if withheld != nil {
		o.Publisher.Set(resourceslice.DriverResources{})
		return
	}
	o.sayFabric(ctx, node.GPUs)
	klog.FromContext(ctx).Info("Offering GPUs", "driverVersion", node.DriverVersion, "gpus", len(node.GPUs), "devices", len(next.shapes), "tainted", len(next.taints))
	sayObstacles(ctx, node.GPUs)
	o.Publisher.Set(resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{o.NodeName: slice.Pool(node, next.shapes, next.taints)}})
}
