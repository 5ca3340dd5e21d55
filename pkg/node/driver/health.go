package driver

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/mica-gpu/mica/pkg/node/probe"
)

// ServeHealth answers gRPC health checks on the listener until ctx ends.
func (d *Driver) ServeHealth(ctx context.Context, listener net.Listener) error {
	return probe.Serve(ctx, listener, d.alive, func(context.Context) error { return d.Ready() })
}

// alive calls both sockets as kubelet does, over new connections: an existing one outlives the removal
// of its socket.
func (d *Driver) alive(ctx context.Context) error {
	registrar, dra := d.sockets()
	if err := call(ctx, registrar, func(conn *grpc.ClientConn) error {
		_, err := registerapi.NewRegistrationClient(conn).GetInfo(ctx, &registerapi.InfoRequest{})
		return err
	}); err != nil {
		return err
	}
	return call(ctx, dra, func(conn *grpc.ClientConn) error {
		_, err := drapb.NewDRAPluginClient(conn).NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{})
		return err
	})
}

func call(ctx context.Context, socket string, ask func(*grpc.ClientConn) error) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("dial %s: %w", socket, err)
	}
	defer func() {
		if err := conn.Close(); err != nil {
			klog.FromContext(ctx).V(4).Info("Cannot close a health check's connection", "socket", socket, "err", err)
		}
	}()
	if err := ask(conn); err != nil {
		return fmt.Errorf("ask %s: %w", socket, err)
	}
	return nil
}
