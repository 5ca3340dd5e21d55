package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/driver"
	"github.com/mica-gpu/mica/pkg/node/driverroot"
	"github.com/mica-gpu/mica/pkg/node/offer"
	"github.com/mica-gpu/mica/pkg/node/podresources"
	"github.com/mica-gpu/mica/pkg/node/probe"
	"github.com/mica-gpu/mica/pkg/tracing"
)

// readBootID returns the running kernel's boot ID.
func readBootID() (string, error) {
	content, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the kernel's boot ID: %w: mount procfs", err)
	}
	return strings.TrimSpace(string(content)), nil
}

// Limits of scrapers: every pod in the cluster can be one.
const (
	// maxScrapes run at once; one more gets 503.
	maxScrapes    = 4
	scrapeTimeout = 10 * time.Second
	// idleTimeout is longer than Prometheus' default scrape interval of a minute.
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 16 << 10
)

// serve runs the plugin until ctx ends.
func serve(ctx context.Context, f *flags) error {
	if err := f.validate(); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Starting", "version", version(), "node", f.nodeName, "driver", f.driverName, "driverRoot", f.hostDriverRoot)
	stopTracing, err := tracing.Start(ctx, "mica-kubelet-plugin", version(), "k8s.node.name", f.nodeName)
	if err != nil {
		return err
	}
	defer stopTracing()
	client, policies, err := newClients(f)
	if err != nil {
		return err
	}
	bootID, err := readBootID()
	if err != nil {
		return err
	}
	hook := &hookInstaller{from: bundledHook}
	plugin, err := driver.New(driver.Options{
		Name:         f.driverName,
		NodeName:     f.nodeName,
		PodUID:       types.UID(f.podUID),
		Client:       client,
		Policies:     policies,
		Open:         func(ctx context.Context) (driver.Hardware, error) { return openForClaims(ctx, f, hook) },
		CDIRoot:      f.cdiRoot,
		PluginsDir:   f.pluginsDir,
		RegistrarDir: f.registrarDir,
		BootID:       bootID,
		MPSRoot:      f.mpsRoot,
		CheckMPS:     func() error { return checkMPS(f) },
		HealthQuiet:  f.healthQuiet,
		Unsampled:    !f.deviceMetrics || f.metricsPort < 0,
		Unnamed:      !f.claimMetrics,

		Containers:         podresources.New(podresources.Directory(f.pluginsDir)),
		IgnoreDevicePlugin: f.ignoreDevicePlugin,
	})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	if err := startServer(ctx, group, "health checks", "healthcheck-port", f.healthPort, plugin.ServeHealth); err != nil {
		return err
	}
	if err := startServer(ctx, group, "metrics", "metrics-port", f.metricsPort, func(ctx context.Context, listener net.Listener) error {
		return serveMetrics(ctx, listener, plugin.Collectors())
	}); err != nil {
		return err
	}
	go dumpOnSignal(ctx, notifyDump(), plugin.State)
	group.Go(func() error { return plugin.Run(ctx) })
	return group.Wait()
}

// checkMPS looks for MPS's program, which some installations of the NVIDIA driver lack.
func checkMPS(f *flags) error {
	const program = "nvidia-cuda-mps-control"
	if _, found := driverroot.Program(f.localDriverRoot, program); !found {
		return fmt.Errorf("the NVIDIA driver in %s has no %s: install its compute utilities, or take mps out of the policy", f.hostDriverRoot, program)
	}
	return nil
}

func newClients(f *flags) (kubernetes.Interface, offer.Policies, error) {
	config, err := clientConfig(f.kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	config.QPS, config.Burst = f.kubeAPIQPS, f.kubeAPIBurst
	config.UserAgent = "mica-kubelet-plugin/" + version()
	policies, err := offer.NewPolicies(config)
	if err != nil {
		return nil, nil, err
	}
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("set up the client of the API server: %w", err)
	}
	return client, policies, nil
}

func clientConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("find the API server: %w: run in a pod with a service account, or set --kubeconfig", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read --kubeconfig: %w: give a readable kubeconfig file", err)
	}
	return config, nil
}

// startServer listens on a port, unless it is negative, and serves in the group.
func startServer(ctx context.Context, group *errgroup.Group, what, flag string, port int, serve func(context.Context, net.Listener) error) error {
	if port < 0 {
		return nil
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("listen on --%s: %w: choose a free port, or -1 for none", flag, err)
	}
	klog.FromContext(ctx).Info("Serving "+what, "address", listener.Addr().String())
	group.Go(func() error { return serve(ctx, listener) })
	return nil
}

// serveMetrics serves the metrics of the process and those of the devices, which have a registry
// of their own because they belong to one plugin.
func serveMetrics(ctx context.Context, listener net.Listener, collectors []metrics.StableCollector) error {
	devices := metrics.NewKubeRegistry()
	for _, collector := range collectors {
		if err := devices.CustomRegister(collector); err != nil {
			return fmt.Errorf("register the metrics of devices: %w", err)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", metrics.HandlerFor(prometheus.Gatherers{legacyregistry.DefaultGatherer, devices}, metrics.HandlerOpts{
		DisableCompression:  true, // a compressor takes a megabyte
		MaxRequestsInFlight: maxScrapes,
	}))
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: scrapeTimeout,
		ReadTimeout:       scrapeTimeout,
		WriteTimeout:      scrapeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
	}
	go func() {
		<-ctx.Done()
		_ = server.Close() // the scraper tries again
	}()
	if err := server.Serve(probe.Bound(listener)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
