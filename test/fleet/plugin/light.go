package plugin

import (
	"context"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/policy"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fleet/cloud"
)

// policyInterval is the time in which light plugins follow a change of policies.
const policyInterval = 2 * time.Second

// publishLightly is the light plugin: it publishes the slices by the present policies.
func (p *Plugins) publishLightly(ctx context.Context, node *corev1.Node) error {
	seen, err := discover(node.Annotations[cloud.AnnotationMachine], node.Name)
	if err != nil {
		return err
	}
	pool, err := p.pool(ctx, node, seen)
	if err != nil {
		return err
	}
	controller, err := resourceslice.StartController(ctx, resourceslice.Options{
		DriverName: p.Driver, KubeClient: p.Client, Resources: resources(node.Name, pool),
		Owner: &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
		ErrorHandler: func(ctx context.Context, err error, msg string) {
			klog.FromContext(ctx).Error(err, "Cannot publish devices; retrying", "operation", msg)
		},
	})
	if err != nil {
		return fmt.Errorf("publish for node %s: %w", node.Name, err)
	}
	defer controller.Stop()
	tick := time.NewTicker(policyInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		next, err := p.pool(ctx, node, seen)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot compute the pool; keeping the published slices")
		} else if !reflect.DeepEqual(next, pool) {
			pool = next
			controller.Update(resources(node.Name, pool))
		}
	}
}

func resources(node string, pool resourceslice.Pool) *resourceslice.DriverResources {
	return &resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: pool}}
}

func discover(machine, node string) (gpu.Node, error) {
	opened, err := open(machine, node)
	if err != nil {
		return gpu.Node{}, err
	}
	defer func() { _ = opened.close() }()
	seen, unreadable, err := opened.Discover()
	if err == nil && len(unreadable) > 0 {
		err = unreadable[0]
	}
	return seen, err
}

// pool is the node's pool by its policy.
func (p *Plugins) pool(ctx context.Context, node *corev1.Node, seen gpu.Node) (resourceslice.Pool, error) {
	all, err := p.policies(ctx)
	if err != nil {
		return resourceslice.Pool{}, err
	}
	by := gpu.ByDefault
	if selected := policy.Select(all, node.Labels); selected != nil {
		compiled, err := policy.Compile(p.Driver, selected)
		if err != nil {
			return resourceslice.Pool{}, err
		}
		each, err := compiled.For(ctx, seen)
		if err != nil {
			return resourceslice.Pool{}, err
		}
		byUUID := map[string]gpu.Policy{}
		for i, g := range seen.GPUs {
			byUUID[g.UUID] = each[i]
		}
		by = func(g gpu.GPU) gpu.Policy { return byUUID[g.UUID] }
	}
	return slice.Pool(seen, gpu.Shapes(seen.GPUs, by), nil), nil
}

// policies are the cluster's, cached for half a policyInterval.
func (p *Plugins) policies(ctx context.Context) ([]*v1alpha1.GPUPolicy, error) {
	if p.Policies == nil {
		return nil, nil
	}
	p.reading.Lock()
	defer p.reading.Unlock()
	if time.Since(p.readAt) < policyInterval/2 {
		return p.read, nil
	}
	list, err := p.Policies.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list GPUPolicies: %w", err)
	}
	p.read, p.readAt = nil, time.Now()
	for i := range list.Items {
		p.read = append(p.read, &list.Items[i])
	}
	return p.read, nil
}
