// Package plugin runs Mica's plugin for nodes without a kubelet: the driver on a simulated machine in this process, with its
// own directories. It publishes the same slices as on a real node. It prepares no claims.
//
// A whole plugin needs inotify instances, and a user has 128. Nodes beyond a number get a light plugin: the same policies,
// shapes and slices, published by the library's controller.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/node/driver"
	"github.com/mica-gpu/mica/pkg/node/offer"
	"github.com/mica-gpu/mica/test/fleet/cloud"
)

// retry is the time before an ended plugin is started again.
const retry = 2 * time.Second

// Options of the plugins.
type Options struct {
	// Driver is the driver's name.
	Driver string
	Client kubernetes.Interface
	// Policies are the cluster's GPUPolicies.
	Policies offer.Policies
	// Whole is the number of nodes with a whole plugin.
	Whole int
	// Dir has the plugins' state. It has at most 40 bytes, because sockets are below it.
	Dir string
}

// Plugins are the plugins of the cloud's nodes.
type Plugins struct {
	Options

	mu      sync.Mutex
	running map[types.UID]context.CancelFunc
	all     sync.WaitGroup
	number  int
	whole   int

	// The policies for light plugins.
	reading sync.Mutex
	read    []*v1alpha1.GPUPolicy
	readAt  time.Time
}

// New starts no plugin.
func New(options Options) *Plugins {
	return &Plugins{Options: options, running: map[types.UID]context.CancelFunc{}}
}

// Run starts a plugin for each new node and stops it with the node, until ctx ends.
func (p *Plugins) Run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactory(p.Client, 0)
	if _, err := factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { p.start(ctx, object) },
		UpdateFunc: func(before, after any) { p.replace(ctx, before, after) },
		DeleteFunc: p.stop,
	}); err != nil {
		return fmt.Errorf("watch the nodes: %w", err)
	}
	factory.StartWithContext(ctx)
	<-ctx.Done()
	factory.Shutdown()
	p.all.Wait()
	return ctx.Err()
}

// replace handles a node that was deleted and created again between two events.
func (p *Plugins) replace(ctx context.Context, before, after any) {
	old, isNode := before.(*corev1.Node)
	node, isNodeToo := after.(*corev1.Node)
	if isNode && isNodeToo && old.UID != node.UID {
		p.stop(old)
		p.start(ctx, node)
	}
}

func (p *Plugins) start(ctx context.Context, object any) {
	node, isNode := object.(*corev1.Node)
	if !isNode || node.Annotations[cloud.AnnotationMachine] == "" {
		return
	}
	log := klog.FromContext(ctx).WithValues("node", node.Name, "machine", node.Annotations[cloud.AnnotationMachine])
	delay, ever, err := cloud.SliceDelay(node)
	if err != nil || !ever {
		log.Info("The node gets no plugin", "err", err)
		return
	}
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, log))
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, already := p.running[node.UID]; already {
		cancel()
		return
	}
	p.running[node.UID] = cancel
	p.number++
	dir := filepath.Join(p.Dir, fmt.Sprint(p.number))
	once := p.publishLightly
	if p.whole < p.Whole {
		p.whole++
		once = func(ctx context.Context, node *corev1.Node) error { return p.once(ctx, node, dir) }
	} else {
		dir = ""
	}
	p.all.Go(func() {
		defer cancel()
		serve(ctx, node, once, time.Until(node.CreationTimestamp.Add(delay)))
		p.clean(ctx, dir)
	})
}

// clean removes the state of a whole plugin.
func (p *Plugins) clean(ctx context.Context, dir string) {
	if dir == "" {
		return
	}
	if err := os.RemoveAll(dir); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot remove the state of a plugin")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.whole--
}

func (p *Plugins) stop(object any) {
	if gone, isGone := object.(cache.DeletedFinalStateUnknown); isGone {
		object = gone.Obj
	}
	node, isNode := object.(*corev1.Node)
	if !isNode {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if cancel := p.running[node.UID]; cancel != nil {
		cancel()
		delete(p.running, node.UID)
	}
}

// serve runs the node's plugin after the delay, and again when it ends.
func serve(ctx context.Context, node *corev1.Node, once func(context.Context, *corev1.Node) error, delay time.Duration) {
	for wait := delay; ; wait = retry {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if err := once(ctx, node); ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The plugin has ended; restarting it", "in", retry)
		}
	}
}

var errEnded = errors.New("the plugin ended without a reason")

// once runs the plugin until it ends.
func (p *Plugins) once(ctx context.Context, node *corev1.Node, dir string) error {
	options := driver.Options{
		Name: p.Driver, NodeName: node.Name, Client: p.Client, Policies: p.Policies,
		Open:    opener(node.Annotations[cloud.AnnotationMachine], node.Name),
		CDIRoot: filepath.Join(dir, "cdi"), PluginsDir: filepath.Join(dir, "p"), RegistrarDir: filepath.Join(dir, "r"),
		// Policies that offer MPS need a supervisor.
		MPSRoot: filepath.Join(dir, "mps"),
		BootID:  string(node.UID),

		HealthQuiet: driver.DefaultHealthQuiet,
	}
	for _, made := range []string{options.RegistrarDir, options.MPSRoot} {
		if err := os.MkdirAll(made, 0o750); err != nil {
			return fmt.Errorf("make the directories of node %s: %w", node.Name, err)
		}
	}
	plugin, err := driver.New(options)
	if err != nil {
		return err
	}
	if err := plugin.Run(ctx); err != nil {
		return err
	}
	return errEnded
}
