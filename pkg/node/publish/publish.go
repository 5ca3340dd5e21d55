// Package publish keeps the ResourceSlices that the API server has of this node as they
// are to be. It is given pools, whatever their devices are, and owns when and how they are
// written, and what of them an API server can keep. It never decides what is offered.
package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/containerd"
	"github.com/mica-gpu/mica/pkg/tracing"
)

const (
	// apiRetry is how long to wait for an API server that does not answer.
	apiRetry = 2 * time.Second
	// nodeLimit bounds the question for the node.
	nodeLimit = 5 * time.Second
	// resyncRetry is how long the controller may take before it is told again.
	resyncRetry = time.Second
	// Two plugin versions that publish different devices meet during a rolling
	// update. Telling the controller at once is worth it after kubelet's wipe,
	// but must not become a fight at the API server's speed.
	resyncsPerSecond = 0.2
	resyncBurst      = 5
	// confirmPeriod is how old the time of the last successful publication gets where nothing changes.
	confirmPeriod = time.Minute
	// concurrentCreates bounds what one node asks of the API server at once.
	concurrentCreates = 4
)

// Publisher keeps the API server's view of the node's devices equal to what
// the node offers. The library's controller does the work; the Publisher adds
// what it lacks: a first publication without its one-second poll, a republish
// as soon as kubelet has wiped the node's slices (the controller waits 30 s),
// and the knowledge of whether the slices are there.
type Publisher struct {
	client           kubernetes.Interface
	driver, nodeName string
	published        atomic.Bool
	features         []*feature  // belong to what runs the publisher
	doubted          atomic.Bool // that the API server keeps what it said

	mu      sync.Mutex
	desired *resourceslice.DriverResources
	changed chan struct{} // holds a token when desired or the API server's view changed
}

// New returns the publisher of a driver on a node. It publishes nothing before Run.
func New(client kubernetes.Interface, driver, nodeName string) *Publisher {
	p := &Publisher{driver: driver, nodeName: nodeName, features: features(), changed: make(chan struct{}, 1)}
	p.client = sharedClient{client, p.get}
	return p
}

// Set replaces what is to be published: all pools of the driver on this node. It never
// blocks.
func (p *Publisher) Set(resources resourceslice.DriverResources) {
	p.mu.Lock()
	p.desired = &resources
	p.mu.Unlock()
	p.wake()
}

// Published tells whether the API server has exactly what is to be published.
func (p *Publisher) Published() bool { return p.published.Load() }

func (p *Publisher) get() *resourceslice.DriverResources {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.desired
}

func (p *Publisher) wake() {
	select {
	case p.changed <- struct{}{}:
	default: // a wake-up is due already
	}
}

// Run publishes until ctx ends. It fails only when the node does not exist, or is
// another one of the same name.
func (p *Publisher) Run(ctx context.Context) error {
	node, err := p.findNode(ctx)
	if err != nil {
		return err
	}
	resources, err := p.firstResources(ctx, node)
	if err != nil {
		return err
	}
	existing, err := p.publishFirst(ctx, node, *resources)
	if err != nil {
		klog.FromContext(ctx).Error(err, "The first publication did not succeed and will be tried again")
	}
	first := step(existing, *resources)
	view := newSliceView(p.client, p.driver, p.nodeName, p.wake)
	stop := view.start(ctx)
	defer stop()
	controller, err := resourceslice.StartController(ctx, resourceslice.Options{
		DriverName:   p.driver,
		KubeClient:   p.client,
		Owner:        &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: p.nodeName, UID: node},
		Resources:    &first,
		ErrorHandler: p.handleError,
	})
	if err != nil {
		return fmt.Errorf("start publishing devices: %w", err)
	}
	defer controller.Stop()
	return p.follow(ctx, node, view, controller, first)
}

// handleError is told of what the library's controller tries again, and of what the API
// server has written without some fields, which trying again does not change: it has lost
// a feature, so it is asked anew what it keeps.
func (p *Publisher) handleError(ctx context.Context, err error, msg string) {
	log := klog.FromContext(ctx)
	var dropped *resourceslice.DroppedFieldsError
	if !errors.As(err, &dropped) {
		log.Error(err, "Publishing devices did not succeed and will be tried again", "what", msg)
		return
	}
	log.Info("The API server has published a slice without some fields; it is asked which features it supports",
		"pool", dropped.PoolName, "slice", dropped.SliceIndex, "features", dropped.DisabledFeatures())
	p.doubted.Store(true)
	p.wake()
}

// follow compares desired and seen slices at every change of either. The controller was told of
// the given step last.
func (p *Publisher) follow(ctx context.Context, node types.UID, view *sliceView, controller *resourceslice.Controller, told resourceslice.DriverResources) error {
	limiter := flowcontrol.NewTokenBucketRateLimiter(resyncsPerSecond, resyncBurst)
	var update tracing.Span // until the API server has what is desired
	defer func() { update.End(ctx.Err()) }()
	for {
		resources, askAgain := p.publishable(ctx, node, p.get())
		var retry <-chan time.Time
		switch seen, synced := view.list(); {
		case resources == nil:
			p.published.Store(false)
		case !synced:
			retry = time.After(resyncRetry)
		case matches(seen, *resources):
			p.markPublished(ctx, *resources)
			update.End(nil)
			update = tracing.Span{}
			retry = time.After(confirmPeriod)
		default:
			p.published.Store(false)
			if !update.On() {
				_, update = tracing.Begin(ctx, "publish slices")
				describe(update, *resources)
			}
			if matches(seen, told) || limiter.TryAccept() { // the next step comes when the last is done
				if err := p.checkNode(ctx, node); err != nil {
					return err
				}
				told = step(seen, *resources)
				controller.Update(&told)
				if len(resources.Pools) == 0 {
					p.remove(ctx, seen)
				}
			}
			retry = time.After(resyncRetry)
		}
		var ask <-chan time.Time
		if !askAgain.IsZero() {
			ask = time.After(time.Until(askAgain))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.changed:
		case <-retry:
		case <-ask:
		}
	}
}

// remove deletes the slices of a node that has nothing to offer any more: the
// controller, told of no pool, only looks for old ones after its 30 s.
func (p *Publisher) remove(ctx context.Context, slices []*resourceapi.ResourceSlice) {
	for _, slice := range slices {
		err := p.client.ResourceV1().ResourceSlices().Delete(ctx, slice.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &slice.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			klog.FromContext(ctx).Error(err, "A slice of devices that are gone could not be removed and will be tried again", "slice", slice.Name)
		}
	}
}

// checkNode fails when the Node object was deleted and made again. Slices of the
// old one are collected as garbage as soon as they are written, and the
// controller's owner is fixed: only a new process can publish for the new one.
// A node that is gone or cannot be read is left to the next time.
func (p *Publisher) checkNode(ctx context.Context, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, nodeLimit)
	defer cancel()
	node, err := p.client.CoreV1().Nodes().Get(ctx, p.nodeName, metav1.GetOptions{})
	if err != nil {
		klog.FromContext(ctx).V(2).Info("The API server does not tell about this node", "node", p.nodeName, "err", err)
		return nil
	}
	if node.UID != uid {
		return fmt.Errorf("node %q was deleted and created again (its UID was %s and is %s): restart the plugin, so that its devices belong to the new node", p.nodeName, uid, node.UID)
	}
	return nil
}

func (p *Publisher) markPublished(ctx context.Context, resources resourceslice.DriverResources) {
	_, devices := count(resources)
	publishedDevices.Set(float64(devices))
	lastPublish.SetToCurrentTime()
	if !p.published.Swap(true) {
		klog.FromContext(ctx).Info("Devices are published", "devices", devices)
	}
}

// describe says what is published.
func describe(span tracing.Span, resources resourceslice.DriverResources) {
	slices, devices := count(resources)
	span.Count("mica.slices", slices)
	span.Count("mica.devices", devices)
}

func count(resources resourceslice.DriverResources) (slices, devices int) {
	for _, pool := range resources.Pools {
		slices += len(pool.Slices)
		for _, slice := range pool.Slices {
			devices += len(slice.Devices)
		}
	}
	return slices, devices
}

// findNode waits for the API server and reads the node's UID.
func (p *Publisher) findNode(ctx context.Context) (types.UID, error) {
	for {
		node, err := p.client.CoreV1().Nodes().Get(ctx, p.nodeName, metav1.GetOptions{})
		switch {
		case err == nil:
			reported := node.Status.NodeInfo.ContainerRuntimeVersion
			if advice := containerd.Advice(reported); advice != "" {
				klog.FromContext(ctx).Info(advice, "containerRuntime", reported)
			}
			return node.UID, nil
		case apierrors.IsNotFound(err):
			return "", fmt.Errorf("node %q does not exist in this cluster: set --node-name to the name under which kubelet registered this node", p.nodeName)
		}
		klog.FromContext(ctx).Error(err, "The API server does not tell about this node", "node", p.nodeName, "retryIn", apiRetry)
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(apiRetry):
		}
	}
}

// firstResources waits for what to publish, and for the API server to tell what of
// it can be kept.
func (p *Publisher) firstResources(ctx context.Context, node types.UID) (*resourceslice.DriverResources, error) {
	for {
		var ask <-chan time.Time
		if desired := p.get(); desired != nil {
			resources, askAgain := p.publishable(ctx, node, desired)
			if resources != nil {
				return resources, nil
			}
			ask = time.After(time.Until(askAgain))
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-p.changed:
		case <-ask:
		}
	}
}

// publishFirst creates the slices of a node that has none, as the controller
// would, who finds them and has nothing left to do. A node that has some, as
// after a restart of the plugin alone, is the controller's from the start.
func (p *Publisher) publishFirst(ctx context.Context, node types.UID, resources resourceslice.DriverResources) (existing []*resourceapi.ResourceSlice, err error) {
	ctx, span := tracing.Begin(ctx, "publish first slices")
	describe(span, resources)
	defer func() { span.End(err) }()
	list, err := p.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: sliceSelector(p.driver, p.nodeName).String()})
	if err != nil {
		return nil, fmt.Errorf("list this node's slices: %w", err)
	}
	if existing = ptrs(list.Items); len(existing) == 0 {
		if err := p.createAll(ctx, node, resources); err != nil {
			return nil, err
		}
	} else if !matches(existing, resources) {
		return existing, nil
	}
	p.markPublished(ctx, resources)
	return existing, nil
}

// createAll creates several slices at a time: until the last is there, the
// scheduler does not use any.
func (p *Publisher) createAll(ctx context.Context, node types.UID, resources resourceslice.DriverResources) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrentCreates)
	for name, pool := range resources.Pools {
		for i := range pool.Slices {
			group.Go(func() error {
				_, err := p.client.ResourceV1().ResourceSlices().Create(ctx, p.firstSlice(node, name, pool, i), metav1.CreateOptions{})
				if err != nil {
					return fmt.Errorf("create slice %d of pool %s: %w", i, name, err)
				}
				return nil
			})
		}
	}
	return group.Wait()
}

// firstSlice is named as resourceslice.Controller names it (its encodeIndex
// writes at least five hexadecimal digits); a test holds the two together.
func (p *Publisher) firstSlice(node types.UID, poolName string, pool resourceslice.Pool, index int) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: fmt.Sprintf("%05x-%s-%s-", index, p.driver, p.nodeName),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Node", Name: p.nodeName, UID: node, Controller: ptr.To(true),
			}},
		},
		Spec: resourceapi.ResourceSliceSpec{
			Driver:         p.driver,
			NodeName:       &p.nodeName,
			Pool:           resourceapi.ResourcePool{Name: poolName, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
			Devices:        pool.Slices[index].Devices,
			SharedCounters: pool.Slices[index].SharedCounters,
		},
	}
}

// sliceSelector selects what one driver publishes for one node.
func sliceSelector(driver, nodeName string) fields.Selector {
	return fields.SelectorFromSet(fields.Set{
		resourceapi.ResourceSliceSelectorDriver:   driver,
		resourceapi.ResourceSliceSelectorNodeName: nodeName,
	})
}

// matches tells whether the slices seen are complete, of one generation, and
// exactly what is desired, in its order.
func matches(seen []*resourceapi.ResourceSlice, desired resourceslice.DriverResources) bool {
	count := 0
	for name, pool := range desired.Pools {
		count += len(pool.Slices)
		if !poolMatches(ofPool(seen, name), pool) {
			return false
		}
	}
	return len(seen) == count
}

func ofPool(seen []*resourceapi.ResourceSlice, name string) []*resourceapi.ResourceSlice {
	var own []*resourceapi.ResourceSlice
	for _, slice := range seen {
		if slice.Spec.Pool.Name == name {
			own = append(own, slice)
		}
	}
	slices.SortFunc(own, func(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	return own
}

func poolMatches(seen []*resourceapi.ResourceSlice, pool resourceslice.Pool) bool {
	if len(seen) != len(pool.Slices) {
		return false
	}
	for i, slice := range seen {
		if slice.Spec.Pool.Generation != seen[0].Spec.Pool.Generation ||
			slice.Spec.Pool.ResourceSliceCount != int64(len(pool.Slices)) ||
			!resourceslice.DevicesDeepEqual(slice.Spec.Devices, pool.Slices[i].Devices) ||
			!apiequality.Semantic.DeepEqual(slice.Spec.SharedCounters, pool.Slices[i].SharedCounters) {
			return false
		}
	}
	return true
}

func ptrs[T any](values []T) []*T {
	pointers := make([]*T, len(values))
	for i := range values {
		pointers[i] = &values[i]
	}
	return pointers
}
