// Command dns answers for the names of Services, as the DNS of a cluster does, on the cluster
// of test/cluster, which has none. Nothing routes a Service's own address there, so that each
// Service is answered for as a headless one: with the addresses of its ready endpoints.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// queryLimit is more than any query takes, in bytes.
const queryLimit = 4096

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dns:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("dns", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:53", "UDP address to answer at")
	if err := flags.Parse(args); err != nil {
		return err
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w: run dns in a pod", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("set up the client of the API server: %w", err)
	}
	known, err := watchEndpoints(ctx, client)
	if err != nil {
		return err
	}
	connection, err := net.ListenPacket("udp", *listen)
	if err != nil {
		return fmt.Errorf("listen for queries: %w: another DNS may run there", err)
	}
	klog.FromContext(ctx).Info("Answering", "address", connection.LocalAddr().String())
	return serve(ctx, connection, known.find)
}

// serve answers until the context ends. It closes the connection.
func serve(ctx context.Context, connection net.PacketConn, find finder) error {
	stop := context.AfterFunc(ctx, func() { _ = connection.Close() })
	defer stop()
	log := klog.FromContext(ctx)
	buffer := make([]byte, queryLimit)
	for {
		size, from, err := connection.ReadFrom(buffer)
		if err != nil {
			if ctx.Err() != nil && errors.Is(err, net.ErrClosed) {
				return nil
			}
			return fmt.Errorf("read a query: %w", err)
		}
		reply, err := answer(buffer[:size], find)
		if err != nil {
			log.V(4).Info("Something that is no query", "from", from.String(), "err", err)
			continue
		}
		if _, err := connection.WriteTo(reply, from); err != nil && ctx.Err() == nil {
			log.Error(err, "An answer did not leave", "to", from.String())
		}
	}
}
