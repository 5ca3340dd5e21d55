// Package publish keeps this node's ResourceSlices at the API server equal to the desired pools. It
// decides when and how slices are written, and leaves out what the API server would drop. It never
// decides which devices are offered.
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
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/containerd"
	"github.com/mica-gpu/mica/pkg/node/wake"
	"github.com/mica-gpu/mica/pkg/tracing"
)

const (
	// apiRetry is the wait after a failed read of the node.
	apiRetry = 2 * time.Second
	// requestTimeout bounds reads of the node, and trials.
	requestTimeout = 5 * time.Second
	// resyncRetry is the wait before the controller gets the same slices again.
	resyncRetry = time.Second
	// Slices that kubelet has wiped are written again at once. The rate is limited because two
	// plugin versions with different devices can meet during a rolling update.
	resyncsPerSecond = 0.2
	resyncBurst      = 5
	// confirmPeriod is the maximum age of the last success if nothing changes.
	confirmPeriod = time.Minute
	// concurrentCreates bounds the requests of one node.
	concurrentCreates = 4
)

// Publisher publishes by the library's controller, and adds what that lacks: a first publication
// without its one-second poll, a republication as soon as kubelet has wiped the node's slices
// (the controller waits 30 s), and whether the slices are there.
type Publisher struct {
	client           kubernetes.Interface
	driver, nodeName string
	published        atomic.Bool
	features         []*feature  // only Run uses them
	doubted          atomic.Bool // the API server has dropped a field of a supported feature

	mu      sync.Mutex
	desired *resourceslice.DriverResources
	changed wake.Signal // holds a token after a change of desired or of the API server's slices
}

// New returns the publisher of a driver on a node. It publishes nothing before Run.
func New(client kubernetes.Interface, driver, nodeName string) *Publisher {
	return &Publisher{client: client, driver: driver, nodeName: nodeName, features: features(), changed: wake.New()}
}

// Set replaces the desired pools of the driver on this node. It never blocks.
func (p *Publisher) Set(resources resourceslice.DriverResources) {
	p.mu.Lock()
	p.desired = &resources
	p.mu.Unlock()
	p.changed.Wake()
}

// Published reports whether the API server has exactly the desired pools.
func (p *Publisher) Published() bool { return p.published.Load() }

func (p *Publisher) get() *resourceslice.DriverResources {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.desired
}

// Run publishes until ctx ends. It fails if the node does not exist, or is replaced by another
// of the same name.
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
		klog.FromContext(ctx).Error(err, "Cannot publish devices for the first time; retrying")
	}
	first := step(existing, *resources)
	view := newSliceView(p.client, p.driver, p.nodeName, p.changed.Wake)
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

// handleError logs what the library's controller retries. Retrying does not help if the API
// server has dropped fields: it has lost a feature, so all features are tried again.
func (p *Publisher) handleError(ctx context.Context, err error, msg string) {
	log := klog.FromContext(ctx)
	var dropped *resourceslice.DroppedFieldsError
	if !errors.As(err, &dropped) {
		log.Error(err, "Cannot publish devices; retrying", "action", msg)
		return
	}
	log.Info("The API server has dropped fields of a slice; trying which features it supports",
		"pool", dropped.PoolName, "slice", dropped.SliceIndex, "features", dropped.DisabledFeatures())
	p.doubted.Store(true)
	p.changed.Wake()
}

// follow compares desired and published slices at every change of either. sent is what the
// controller has got last.
func (p *Publisher) follow(ctx context.Context, node types.UID, view *sliceView, controller *resourceslice.Controller, sent resourceslice.DriverResources) error {
	limiter := flowcontrol.NewTokenBucketRateLimiter(resyncsPerSecond, resyncBurst)
	var update tracing.Span // until the API server has the desired slices
	defer func() { update.End(ctx.Err()) }()
	for {
		resources, retryAt := p.publishable(ctx, node, p.get())
		var retry <-chan time.Time
		switch published, synced := view.list(); {
		case resources == nil:
			p.published.Store(false)
		case !synced:
			retry = time.After(resyncRetry)
		case matches(published, *resources):
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
			if matches(published, sent) || limiter.TryAccept() { // the next step begins when the last is done
				if err := p.checkNode(ctx, node); err != nil {
					return err
				}
				sent = step(published, *resources)
				controller.Update(&sent)
				if len(resources.Pools) == 0 {
					p.remove(ctx, published)
				}
			}
			retry = time.After(resyncRetry)
		}
		var trial <-chan time.Time
		if !retryAt.IsZero() {
			trial = time.After(time.Until(retryAt))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.changed:
		case <-retry:
		case <-trial:
		}
	}
}

// remove deletes the slices of a node that offers nothing any more. Without a pool, the controller
// only does so after 30 s.
func (p *Publisher) remove(ctx context.Context, slices []*resourceapi.ResourceSlice) {
	for _, slice := range slices {
		err := p.client.ResourceV1().ResourceSlices().Delete(ctx, slice.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &slice.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			klog.FromContext(ctx).Error(err, "Cannot remove a slice of devices that are gone; retrying", "slice", slice.Name)
		}
	}
}

// checkNode fails if the Node object was deleted and created again. Slices that the old one owns
// are garbage, and the controller's owner is fixed: only a new process can publish for the new
// Node. checkNode ignores a node that is missing or cannot be read.
func (p *Publisher) checkNode(ctx context.Context, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	node, err := p.client.CoreV1().Nodes().Get(ctx, p.nodeName, metav1.GetOptions{})
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot read this node", "node", p.nodeName, "err", err)
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

// describe adds the numbers of slices and devices to a span.
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
func (p *Publisher) findNode(ctx context.Context) (uid types.UID, err error) {
	err = wait.PollUntilContextCancel(ctx, apiRetry, true, func(ctx context.Context) (bool, error) {
		node, err := p.client.CoreV1().Nodes().Get(ctx, p.nodeName, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return false, fmt.Errorf("node %q does not exist in this cluster: set --node-name to the name under which kubelet registered this node", p.nodeName)
		case err != nil:
			klog.FromContext(ctx).Error(err, "Cannot read this node; retrying", "node", p.nodeName, "retryIn", apiRetry)
			return false, nil
		}
		reported := node.Status.NodeInfo.ContainerRuntimeVersion
		if advice := containerd.Advice(reported); advice != "" {
			klog.FromContext(ctx).Info(advice, "containerRuntime", reported)
		}
		uid = node.UID
		return true, nil
	})
	return uid, err
}

// firstResources waits until there are desired pools, and until it is known which of their
// features the API server supports.
func (p *Publisher) firstResources(ctx context.Context, node types.UID) (*resourceslice.DriverResources, error) {
	for {
		var trial <-chan time.Time
		if desired := p.get(); desired != nil {
			resources, retryAt := p.publishable(ctx, node, desired)
			if resources != nil {
				return resources, nil
			}
			trial = time.After(time.Until(retryAt))
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-p.changed:
		case <-trial:
		}
	}
}

// publishFirst creates the slices of a node that has none, as the controller would, which then
// finds them. It leaves a node with slices to the controller, for example after a restart of the
// plugin.
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

// createAll creates several slices at a time: the scheduler uses none until the last is there.
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

// firstSlice has the name that resourceslice.Controller gives it (its encodeIndex writes at least
// five hexadecimal digits); a test compares them.
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

// sliceSelector selects the slices of one driver and node.
func sliceSelector(driver, nodeName string) fields.Selector {
	return fields.SelectorFromSet(fields.Set{
		resourceapi.ResourceSliceSelectorDriver:   driver,
		resourceapi.ResourceSliceSelectorNodeName: nodeName,
	})
}

// matches reports whether the published slices are complete, of one generation, and equal to the
// desired ones in their order.
func matches(published []*resourceapi.ResourceSlice, desired resourceslice.DriverResources) bool {
	count := 0
	for name, pool := range desired.Pools {
		count += len(pool.Slices)
		if !poolMatches(ofPool(published, name), pool) {
			return false
		}
	}
	return len(published) == count
}

func ofPool(published []*resourceapi.ResourceSlice, name string) []*resourceapi.ResourceSlice {
	var own []*resourceapi.ResourceSlice
	for _, slice := range published {
		if slice.Spec.Pool.Name == name {
			own = append(own, slice)
		}
	}
	slices.SortFunc(own, func(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	return own
}

func poolMatches(published []*resourceapi.ResourceSlice, pool resourceslice.Pool) bool {
	if len(published) != len(pool.Slices) {
		return false
	}
	for i, slice := range published {
		if slice.Spec.Pool.Generation != published[0].Spec.Pool.Generation ||
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
