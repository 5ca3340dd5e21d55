// Package offer decides which devices a node offers, and keeps them up to date: it discovers GPUs,
// excludes instances made for claims, applies GPUPolicies, and withdraws shapes that they drop. It
// never writes slices and never changes a GPU.
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
	"github.com/mica-gpu/mica/pkg/node/wake"
	"github.com/mica-gpu/mica/pkg/slice"
)

// rereads are the delays between attempts to read unreadable GPUs. They grow, because a broken GPU is
// retried forever.
var rereads = wait.Backoff{Duration: time.Second, Factor: 2, Cap: time.Minute, Steps: math.MaxInt}

// lookInterval bounds how long the loss of a GPU, or a foreign change of MIG, goes unnoticed. While
// NVML is closed, restInterval applies.
const lookInterval = 10 * time.Second

// GPUs are the node's, read through an open NVIDIA driver.
type GPUs interface {
	// Discover reads the GPUs. It reports unreadable ones in unreadable and leaves them out.
	Discover() (node gpu.Node, unreadable []error, err error)
	// Refresh reads the changing facts of discovered GPUs while the driver is loaded: MIG mode, instances and
	// NVLinks. It returns unreadable GPUs unchanged. After nvml.ErrGPULost, nvml.ErrSilent and
	// nvml.ErrGPUsChanged, call Discover.
	Refresh(gpus []gpu.GPU) ([]gpu.GPU, error)
	// Persistent reports whether the driver keeps idle GPUs initialized.
	Persistent() (bool, error)
	// Rest closes the driver until the next call, and reports whether it did: not while another call is
	// running.
	Rest() (resting bool, err error)
}

// Hardware has the node's GPUs, and the means to prepare claims with them.
type Hardware struct {
	GPUs  GPUs
	Edits prepare.Edits
	Tools prepare.Tools
}

// Claims are this node's.
type Claims interface {
	// Held lists the devices that claims hold, or may hold.
	Held(ctx context.Context) ([]journal.Device, error)
	// Seen records which partitions of claims are destroyed, given a look at the GPUs.
	Seen(ctx context.Context, gpus []gpu.GPU) error
	// SetNode replaces the node that claims are prepared for.
	SetNode(node prepare.Node)
}

// Health knows the health of GPUs.
type Health interface {
	// See reports the present GPUs, and why others cannot be read, by UUID.
	See(present []gpu.GPU, missing map[string]error)
	// Remembered lists GPUs seen before, also by earlier processes.
	Remembered() []gpu.GPU
	// Record returns a GPU's health record.
	Record(uuid string) health.Record
	// Repaired sets when an administrator repaired GPUs, by UUID.
	Repaired(times map[string]time.Time)
}

// Publisher publishes the last value that was set.
type Publisher interface {
	Set(resources resourceslice.DriverResources)
}

// Events sends Events to users.
type Events interface {
	WarnNode(reason, sentence string)
}

// Options configure an Offer. Policies and Containers are optional.
type Options struct {
	// Driver is the driver's name; NodeName is the node's and its pool's.
	Driver, NodeName string
	Claims           Claims
	Publisher        Publisher
	Events           Events
	Health           Health
	// Client reads the node's labels.
	Client kubernetes.Interface
	// Policies are the cluster's GPUPolicies; nil to ignore them.
	Policies Policies
	// CheckMPS returns what the node lacks for MPS, and what to do.
	CheckMPS func() error
	// Containers lists what containers still hold of a removed device plugin; nil to skip that check.
	Containers Containers
	// IgnoreDevicePlugin offers GPUs even if a device plugin does or did.
	IgnoreDevicePlugin bool
}

// Offer decides what a node offers. New has no effects; Start, Watch and Run have.
type Offer struct {
	Options
	policies *policyView
	report   *report
	// reconsider wakes Watch, such as after a change of policy.
	reconsider wake.Signal
	// used wakes Watch to close the driver.
	used wake.Signal
	// changed holds a token when claims can be prepared with something else.
	changed wake.Signal
	// state is the result of State.
	state atomic.Pointer[State]
	// passing: some shapes are offered only because claims hold them.
	passing atomic.Bool
	// restful: the driver may be closed while no claim holds a device.
	restful atomic.Bool

	// The fields below belong to the goroutine of Start and Watch.

	hardware Hardware
	// seen is the node as it was read last, with every instance; unread names the GPUs that could not be
	// read, empty if all could.
	seen   gpu.Node
	unread string
	// missing are known GPUs that cannot be read now. They stay offered with a taint, because the taint
	// may have to evict pods.
	missing []missingGPU
	// occupied: claims hold devices, or may.
	occupied bool
	// foreign are the GPUs with their foreign instances.
	foreign []gpu.GPU
	// fabric is the last message about GPUs that wait for the fabric manager.
	fabric string
	// offered are the identities of the offered shapes, and reportedWithheld why they are not published, empty
	// if they are.
	offered          []string
	reportedWithheld string
	// leftovers are containers of a removed device plugin, and reportedTaken the last message about those and
	// about claims of a newer version.
	leftovers     leftovers
	reportedTaken string
	// applied and history are the policies' results, until is when the offer next changes by itself, zero
	// for never.
	applied applied
	history history
	// repairs are from the node's annotations.
	repairs repairs
	// faults are the policy's effects of faults.
	faults slice.FaultEffects
	// resets are the conditions for which the policy has GPUs reset.
	resets health.ConditionSet
	until  time.Time
}

// New returns an Offer of nothing.
func New(options Options) *Offer {
	o := &Offer{
		Options:    options,
		report:     &report{client: options.Policies, nodeName: options.NodeName, changed: wake.New()},
		reconsider: wake.New(),
		used:       wake.New(),
		changed:    wake.New(),
	}
	o.policies = newPolicyView(options.Policies, options.Client, options.NodeName, func() { o.reconsider.Wake() })
	return o
}

// Run follows the policies and reports the node's verdict on them, until ctx ends.
func (o *Offer) Run(ctx context.Context) error {
	if o.Policies == nil {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return o.policies.run(ctx) })
	group.Go(func() error { return o.report.run(ctx) })
	return group.Wait()
}

// Start offers the GPUs of an open NVIDIA driver. It returns an error if there is none.
func (o *Offer) Start(ctx context.Context, hardware Hardware) error {
	o.hardware = hardware
	return o.offerAll(ctx)
}

// State is the result of the last look.
type State struct {
	Node gpu.Node
	// Shapes are the offered ones.
	Shapes []gpu.Shape
	// Taints are the shapes', by name. Do not modify them.
	Taints slice.Taints
	// Offered describes each shape: name, GPU, sharing and taints; then why devices are not offered.
	Offered []string
	// Resets are the conditions for which the policy has GPUs reset that no claim holds.
	Resets health.ConditionSet
}

// State is empty before the first look.
func (o *Offer) State() State {
	if state := o.state.Load(); state != nil {
		return *state
	}
	return State{}
}

// Reconsider triggers another look, such as after a change of health.
func (o *Offer) Reconsider() { o.reconsider.Wake() }

// Used signals that the NVIDIA driver was used and may be closed again.
func (o *Offer) Used() { o.used.Wake() }

// Changed signals that claims can be prepared with something else.
func (o *Offer) Changed() <-chan struct{} { return o.changed }

// Released signals that a claim has ended: it may be the last with a withdrawn shape.
func (o *Offer) Released() {
	if o.passing.Load() || o.restful.Load() {
		o.reconsider.Wake()
	}
}

// Watch keeps the offer up to date until ctx ends: it looks again at GPUs, retries unreadable ones,
// and follows policies and withdrawals.
func (o *Offer) Watch(ctx context.Context) error {
	next := rereads.DelayFunc()
	again := time.Now().Add(next())
	reported := ""
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
			reported = ""
		case err.Error() != reported && ctx.Err() == nil:
			reported = err.Error()
			klog.FromContext(ctx).Error(err, "Cannot read the GPUs; keeping the last offer")
		}
	}
}

// wait waits for pause or a wake-up. It closes the driver each time it was used meanwhile.
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

// nextLook is the time until the offer may change, at most interval.
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
			klog.FromContext(ctx).Error(err, "Cannot read a GPU, so it gets no claims; retrying")
			o.Events.WarnNode(ReasonUnreadable, inOneLine(err)+": the GPU gets no claims until it answers; see the kernel's log for messages of NVRM, and reset or replace it")
		}
	}
	o.miss(found)
	o.seen, o.unread = found.node, unread
	logDifferences(ctx, o.seen.GPUs)
	o.offerFound(ctx, found)
	return nil
}

// offerChanges reads what may have changed; NVML has no notifications for it. After the loss, silence
// or arrival of a GPU it reads everything.
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

// offerFound offers the GPUs by the policies, unless that is offered already.
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
		klog.FromContext(ctx).Error(err, "A device of a claim is not offered")
	}
	o.changed.Wake()
	if !known {
		return // claims that are prepared can be taken back; new ones come when it is published
	}
	o.reportTaken(ctx, inUse)
	o.reportWithheld(ctx, withheld)
	if withheld != nil {
		o.Publisher.Set(resourceslice.DriverResources{})
		return
	}
	o.reportFabric(ctx, node.GPUs)
	klog.FromContext(ctx).Info("Offering GPUs", "driverVersion", node.DriverVersion, "gpus", len(node.GPUs), "devices", len(next.shapes), "tainted", len(next.taints))
	logObstacles(ctx, node.GPUs)
	o.Publisher.Set(resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{o.NodeName: slice.Pool(node, next.shapes, next.taints)}})
}
