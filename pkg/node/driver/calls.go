package driver

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/mica-gpu/mica/pkg/tracing"
)

// calls observes kubelet's gRPC calls: it knows when kubelet has registered the plugin, and lets calls
// in flight finish before the process ends.
type calls struct {
	registered atomic.Bool
	// known is closed when kubelet has registered the plugin for the first time.
	known     chan struct{}
	closeOnce sync.Once

	mu       sync.Mutex
	draining bool
	inFlight sync.WaitGroup
}

// intercept is a gRPC unary server interceptor.
func (c *calls) intercept(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if registration, ok := request.(*registerapi.RegistrationStatus); ok {
		c.registered.Store(registration.PluginRegistered)
		if registration.PluginRegistered {
			c.closeOnce.Do(func() { close(c.known) })
		} else {
			klog.FromContext(ctx).Info("kubelet refused to register the plugin", "reason", registration.Error)
		}
	}
	if !c.begin() {
		return nil, status.Error(codes.Unavailable, "this plugin process is stopping; its successor or a restart will answer")
	}
	defer c.inFlight.Done()
	return handle(tracing.Join(ctx), request)
}

// awaitRegistration waits until kubelet has registered the plugin, or for patience.
func (c *calls) awaitRegistration(ctx context.Context, patience time.Duration) {
	select {
	case <-c.known:
	case <-ctx.Done():
	case <-time.After(patience):
		klog.FromContext(ctx).Info("kubelet has not registered the plugin yet; publishing devices anyway, and pods wait for kubelet to retry", "waited", patience)
	}
}

func (c *calls) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.draining {
		return false
	}
	c.inFlight.Add(1)
	return true
}

// drain refuses new calls and waits for those in flight.
func (c *calls) drain(ctx context.Context, timeout time.Duration) {
	c.mu.Lock()
	c.draining = true
	c.mu.Unlock()
	finished := make(chan struct{})
	go func() {
		c.inFlight.Wait()
		close(finished)
	}()
	select {
	case <-finished:
	case <-time.After(timeout):
		klog.FromContext(ctx).Info("Stopping although calls are still in flight; kubelet repeats them", "waited", timeout)
	}
}
