// Package cloud simulates a cloud that keeps node groups at their desired sizes. A machine is a Node object, which kwok
// keeps alive. Package plugin runs the plugin on it. Clients are an autoscaler, the APIs of package aws and tests.
package cloud

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
)

// Cloud has node groups. Its machines are Nodes of the cluster. Booting machines and desired sizes are lost with the
// process.
type Cloud struct {
	nodes typedcorev1.NodeInterface
	now   func() time.Time

	mu     sync.Mutex
	groups map[string]*group
}

// group is a Group with its state.
type group struct {
	Group
	desired int
	// joined are the instances of the nodes at the last step, by node. boots are the booting machines.
	joined map[string]string
	boots  []boot
	failed int
	// known reports whether the nodes from before this process were counted.
	known bool
}

// boot is a booting machine.
type boot struct {
	instance string
	due      time.Time
}

// Errors of a Cloud.
var (
	ErrNoGroup    = errors.New("there is no such node group")
	ErrNoInstance = errors.New("no node group has this instance")
	ErrSize       = errors.New("the size is outside of the group's limits")
)

// New makes a cloud with these groups and their nodes in the cluster.
func New(nodes typedcorev1.NodeInterface, now func() time.Time, groups []Group) *Cloud {
	c := &Cloud{nodes: nodes, now: now, groups: map[string]*group{}}
	for _, g := range groups {
		c.groups[g.Name] = &group{Group: g, desired: g.Min}
	}
	return c
}

// Put adds a group, or changes one for future machines.
func (c *Cloud) Put(g Group) error {
	if err := g.Check(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	existing, found := c.groups[g.Name]
	if !found {
		c.groups[g.Name] = &group{Group: g, desired: g.Min}
		return nil
	}
	existing.Group = g
	existing.desired = min(max(existing.desired, g.Min), g.Max)
	return nil
}

// Remove removes a group and terminates its machines.
func (c *Cloud) Remove(ctx context.Context, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, found := c.groups[name]
	if !found {
		return fmt.Errorf("remove node group %s: %w", name, ErrNoGroup)
	}
	nodes, err := c.list(ctx)
	if err != nil {
		return err
	}
	for _, node := range nodes[g.Name] {
		if err := c.delete(ctx, node.Name); err != nil {
			return err
		}
	}
	delete(c.groups, name)
	return nil
}

// SetDesired sets the desired size. A smaller group loses booting machines first, then the youngest.
func (c *Cloud) SetDesired(name string, desired int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	g, found := c.groups[name]
	switch {
	case !found:
		return fmt.Errorf("set the size of node group %s: %w", name, ErrNoGroup)
	case desired < g.Min || desired > g.Max:
		return fmt.Errorf("set the size of node group %s to %d, which allows %d to %d: %w", name, desired, g.Min, g.Max, ErrSize)
	}
	g.desired = desired
	return nil
}

// Terminate terminates a machine and lowers the group's size.
func (c *Cloud) Terminate(ctx context.Context, instance string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.groups {
		booting := len(g.boots)
		g.boots = slices.DeleteFunc(g.boots, func(b boot) bool { return b.instance == instance })
		node := g.nodeOf(instance)
		if node == "" && len(g.boots) == booting {
			continue
		}
		if node != "" {
			if err := c.delete(ctx, node); err != nil {
				return err
			}
			delete(g.joined, node)
		}
		g.desired = max(g.desired-1, g.Min)
		return nil
	}
	return fmt.Errorf("terminate %s: %w", instance, ErrNoInstance)
}

// nodeOf is the instance's node. Empty: it has not joined.
func (g *group) nodeOf(instance string) string {
	for node, of := range g.joined {
		if of == instance {
			return node
		}
	}
	return ""
}

// States are all groups, by name.
func (c *Cloud) States() []State {
	c.mu.Lock()
	defer c.mu.Unlock()
	var states []State
	for _, g := range c.groups {
		states = append(states, State{Group: g.Group, Desired: g.desired, Instances: g.instances(), Failed: g.failed})
	}
	slices.SortFunc(states, func(a, b State) int { return strings.Compare(a.Name, b.Name) })
	return states
}

// instances are the joined ones by node, and then the booting ones in order.
func (g *group) instances() []Instance {
	var all []Instance
	for _, node := range slices.Sorted(maps.Keys(g.joined)) {
		all = append(all, Instance{ID: g.joined[node], Node: node})
	}
	for _, b := range g.boots {
		all = append(all, Instance{ID: b.instance})
	}
	return all
}

// Run brings the groups to their sizes until ctx ends.
func (c *Cloud) Run(ctx context.Context, interval time.Duration) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := c.Step(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot bring all node groups to their sizes; retrying")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Step starts and terminates machines.
func (c *Cloud) Step(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	nodes, err := c.list(ctx)
	if err != nil {
		return err
	}
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(c.groups)) {
		problems = append(problems, c.step(ctx, c.groups[name], nodes[name]))
	}
	return errors.Join(problems...)
}

func (c *Cloud) step(ctx context.Context, g *group, nodes []corev1.Node) error {
	g.see(nodes)
	g.plan(c.now())
	for excess := len(g.joined) + len(g.boots) - g.desired; excess > 0; excess-- {
		if last := len(g.boots) - 1; last >= 0 {
			g.boots = g.boots[:last]
			continue
		}
		node := nodes[len(nodes)-1].Name
		if err := c.delete(ctx, node); err != nil {
			return err
		}
		nodes = nodes[:len(nodes)-1]
		delete(g.joined, node)
	}
	for len(g.boots) > 0 && !g.boots[0].due.After(c.now()) {
		instance := g.boots[0].instance
		node, err := c.nodes.Create(ctx, g.newNode(instance), metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("let a machine of node group %s join: %w", g.Name, err)
		}
		g.boots = g.boots[1:]
		g.joined[node.Name] = instance
		klog.FromContext(ctx).Info("A machine has joined", "group", g.Name, "node", node.Name)
	}
	return nil
}

// see records nodes that were created and deleted. Deleting a Node terminates its machine.
func (g *group) see(nodes []corev1.Node) {
	joined := map[string]string{}
	for _, node := range nodes {
		joined[node.Name] = InstanceOf(&node)
	}
	if !g.known {
		g.known = true
		g.desired = max(g.desired, len(joined))
	}
	for name := range g.joined {
		if _, still := joined[name]; !still {
			g.desired = max(g.desired-1, g.Min)
		}
	}
	g.joined = joined
}

// plan starts missing machines, or counts them as failed if there is no capacity.
func (g *group) plan(now time.Time) {
	missing := max(g.desired-len(g.joined)-len(g.boots), 0)
	g.failed = 0
	if g.Failure != nil {
		g.failed = missing + len(g.boots)
		g.boots = nil
		return
	}
	for range missing {
		g.boots = append(g.boots, boot{newInstance(), now.Add(g.BootDelay.Duration)})
	}
	slices.SortFunc(g.boots, func(a, b boot) int { return a.due.Compare(b.due) })
}

// list returns the nodes of each group, the oldest first.
func (c *Cloud) list(ctx context.Context) (map[string][]corev1.Node, error) {
	all, err := c.nodes.List(ctx, metav1.ListOptions{LabelSelector: LabelNodegroup})
	if err != nil {
		return nil, fmt.Errorf("list the machines: %w", err)
	}
	byGroup := map[string][]corev1.Node{}
	for _, node := range all.Items {
		if group := node.Annotations[AnnotationGroup]; group != "" && node.DeletionTimestamp.IsZero() {
			byGroup[group] = append(byGroup[group], node)
		}
	}
	for _, nodes := range byGroup {
		slices.SortStableFunc(nodes, func(a, b corev1.Node) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	}
	return byGroup, nil
}

func (c *Cloud) delete(ctx context.Context, node string) error {
	if err := c.nodes.Delete(ctx, node, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("terminate machine %s: %w", node, err)
	}
	return nil
}
