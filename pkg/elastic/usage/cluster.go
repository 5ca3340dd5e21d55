package usage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/devices"
)

// Indexes of the cache. The prefix keeps them apart from indexes of other packages.
const (
	// indexHeld finds claims by the devices that they hold.
	indexHeld = "usage.heldDevice"
	// indexPool finds the driver's ResourceSlices by pool.
	indexPool = "usage.pool"
	// indexPlugin finds the plugin's pods by node.
	indexPlugin = "usage.pluginNode"
)

// cluster reads shares of devices, and the plugin's pods, from the controller's cache.
type cluster struct {
	reader    client.Reader
	driver    string
	namespace string
	plugin    labels.Selector
}

func deviceKey(pool, device string) string { return pool + "/" + device }

func (c cluster) heldDevices(object client.Object) []string {
	claim, is := object.(*resourceapi.ResourceClaim)
	if !is {
		return nil
	}
	var keys []string
	for held := range devices.Holdings(claim.Status.Allocation) {
		if held.Pool.Driver == c.driver {
			keys = append(keys, deviceKey(held.Pool.Name, held.Name))
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func (c cluster) ownPool(object client.Object) []string {
	if slice, is := object.(*resourceapi.ResourceSlice); is && slice.Spec.Driver == c.driver {
		return []string{slice.Spec.Pool.Name}
	}
	return nil
}

func (c cluster) pluginNode(object client.Object) []string {
	pod, is := object.(*corev1.Pod)
	if !is || pod.Namespace != c.namespace || pod.Spec.NodeName == "" || !c.plugin.Matches(labels.Set(pod.Labels)) {
		return nil
	}
	return []string{pod.Spec.NodeName}
}

// shares returns the claims' shares of a device.
func (c cluster) shares(ctx context.Context, pool, device string) (map[shareKey]consumption, error) {
	var claims resourceapi.ResourceClaimList
	if err := c.reader.List(ctx, &claims, client.MatchingFields{indexHeld: deviceKey(pool, device)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the claims that hold it: %w", err)
	}
	wanted := devices.ID{Pool: devices.PoolID{Driver: c.driver, Name: pool}, Name: device}
	shares := map[shareKey]consumption{}
	for i := range claims.Items {
		for held := range devices.Holdings(claims.Items[i].Status.Allocation) {
			if held.ID == wanted {
				shares[keyOf(claims.Items[i].UID, held.ShareID)] = held.ConsumedCapacity
			}
		}
	}
	return shares, nil
}

// capacity returns a device's capacity as last published.
func (c cluster) capacity(ctx context.Context, pool, device string) (capacity, error) {
	var all resourceapi.ResourceSliceList
	if err := c.reader.List(ctx, &all, client.MatchingFields{indexPool: pool}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the slices of pool %s: %w", pool, err)
	}
	found := devices.Last(all.Items, device)
	if found == nil {
		return nil, fmt.Errorf("no ResourceSlice of pool %s has it any more: see the log of the node's plugin for why it was withdrawn", pool)
	}
	return found.Capacity, nil
}

// metricsPort is the name of the plugin's port for metrics in the chart.
const metricsPort = "metrics"

// target is the endpoint of a plugin's metrics.
type target struct {
	// pod is NAMESPACE/NAME.
	pod, address string
	port         int32
}

// target returns the endpoint of the plugin's pod that is most likely to answer: during a rolling
// update, a node has two.
func (c cluster) target(ctx context.Context, node string) (target, error) {
	var pods corev1.PodList
	if err := c.reader.List(ctx, &pods, client.MatchingFields{indexPlugin: node}, client.UnsafeDisableDeepCopy); err != nil {
		return target{}, fmt.Errorf("list the plugin's pods: %w", err)
	}
	return c.targetOf(pods.Items)
}

// targetOf chooses among the plugin's pods on one node.
func (c cluster) targetOf(pods []corev1.Pod) (target, error) {
	if len(pods) == 0 {
		return target{}, fmt.Errorf("no pod in namespace %s with labels %s exists: check that the plugin's DaemonSet selects the node and that its pods start", c.namespace, c.plugin)
	}
	best := slices.MaxFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(
			cmp.Compare(rank(&a), rank(&b)),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name),
		)
	})
	name := best.Namespace + "/" + best.Name
	if rank(&best) == rankNone {
		return target{}, fmt.Errorf("pod %s is %s and has no address yet: see why it does not start", name, cmp.Or(best.Status.Phase, corev1.PodUnknown))
	}
	port, err := portOf(&best)
	if err != nil {
		return target{}, fmt.Errorf("pod %s: %w", name, err)
	}
	return target{pod: name, address: best.Status.PodIP, port: port}, nil
}

// Ranks of pods that might answer.
const (
	rankNone = iota
	rankEnding
	rankStarting
	rankReady
)

func rank(pod *corev1.Pod) int {
	switch {
	case pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == "":
		return rankNone
	case pod.DeletionTimestamp != nil:
		return rankEnding
	case slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
		return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
	}):
		return rankReady
	}
	return rankStarting
}

var errNoPort = errors.New("no container has a port named " + metricsPort + ": its metrics are switched off, set kubeletPlugin.containers.plugin.metricsPort of the chart to a port")

func portOf(pod *corev1.Pod) (int32, error) {
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if port.Name == metricsPort {
				return port.ContainerPort, nil
			}
		}
	}
	return 0, errNoPort
}
