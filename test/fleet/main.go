// Command fleet simulates a cloud with GPU machines. It keeps node groups at the sizes that clients set by HTTP, with nodes
// that kwok keeps alive, and runs Mica's plugin on a simulated machine for each.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/offer"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fleet/aws"
	"github.com/mica-gpu/mica/test/fleet/cloud"
	"github.com/mica-gpu/mica/test/fleet/plugin"
)

// stepInterval is the time between steps of the cloud.
const stepInterval = 200 * time.Millisecond

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

type flags struct {
	kubeconfig, listen, addressFile, driver string

	wholePlugins int
}

func newCommand() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{
		Use:           "fleet",
		Short:         "Play a cloud with GPU machines whose nodes kwok keeps alive",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), f) },
	}
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "the cluster, as its administrator")
	cmd.Flags().StringVar(&f.listen, "listen", "127.0.0.1:8600", "loopback address at which machines are asked for; port 0: any")
	cmd.Flags().StringVar(&f.addressFile, "address-file", "", "a file to write the server's URL into once it serves")
	cmd.Flags().StringVar(&f.driver, "driver-name", slice.DefaultDriver, "the driver's name")
	cmd.Flags().IntVar(&f.wholePlugins, "whole-plugins", 16, "how many nodes get the whole plugin at a time; others publish the same without the rest of it")
	return cmd
}

func run(ctx context.Context, f *flags) error {
	client, policies, err := newClients(f.kubeconfig)
	if err != nil {
		return err
	}
	// The path must be short, because it contains sockets.
	dir, err := os.MkdirTemp("", "fleet")
	if err != nil {
		return fmt.Errorf("make a directory for the plugins: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	machines := cloud.New(client.CoreV1().Nodes(), time.Now, nil)
	plugins := plugin.New(plugin.Options{Driver: f.driver, Client: client, Policies: policies, Whole: f.wholePlugins, Dir: dir})
	listener, err := listen(f.listen)
	if err != nil {
		return err
	}
	if f.addressFile != "" {
		if err := os.WriteFile(f.addressFile, []byte("http://"+listener.Addr().String()), 0o600); err != nil {
			return fmt.Errorf("write --address-file: %w", err)
		}
	}
	klog.FromContext(ctx).Info("Serving the cloud", "address", listener.Addr().String())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return machines.Run(ctx, stepInterval) })
	group.Go(func() error { return plugins.Run(ctx) })
	group.Go(func() error { return serve(ctx, listener, handler(machines)) })
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// listen refuses addresses that other machines can reach, since there is no password.
func listen(address string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w: give an address such as 127.0.0.1:8600", address, err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("--listen %s is no loopback address: give one such as 127.0.0.1:8600", address)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on --listen %s: %w: choose a free port, or 0 for any", address, err)
	}
	return listener, nil
}

// handler serves the cloud to tests, and as AWS to Cluster Autoscaler.
func handler(machines *cloud.Cloud) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", machines.Handler())
	mux.Handle("/aws/", aws.Handler(machines, time.Now))
	return mux
}

func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // clients retry
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the cloud: %w", err)
	}
	return ctx.Err()
}

// newClients sets no rate limit, because it acts for all nodes.
func newClients(kubeconfig string) (kubernetes.Interface, offer.Policies, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("read --kubeconfig: %w: name a readable kubeconfig file", err)
	}
	config.QPS = -1
	config.UserAgent = "fleet"
	policies, err := offer.NewPolicies(config)
	if err != nil {
		return nil, nil, err
	}
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("set up the client of the API server: %w", err)
	}
	return client, policies, nil
}
