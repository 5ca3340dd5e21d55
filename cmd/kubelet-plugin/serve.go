package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/atomicfile"
	"github.com/mica-gpu/mica/pkg/node/driver"
	"github.com/mica-gpu/mica/pkg/node/driverroot"
	"github.com/mica-gpu/mica/pkg/node/offer"
	"github.com/mica-gpu/mica/pkg/tracing"
)

const (
	bundledHook = "/usr/bin/nvidia-cdi-hook"
	hookName    = "nvidia-cdi-hook"
	bootIDFile  = "/proc/sys/kernel/random/boot_id"
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
	bootID, err := os.ReadFile(bootIDFile)
	if err != nil {
		return fmt.Errorf("read the kernel's boot ID: %w", err)
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
		BootID:       strings.TrimSpace(string(bootID)),
		MPSRoot:      f.mpsRoot,
		CheckMPS:     func() error { return checkMPS(f) },
		HealthQuiet:  f.healthQuiet,
		Unsampled:    !f.deviceMetrics || f.metricsPort < 0,
		Unnamed:      !f.claimMetrics,

		IgnoreDevicePlugin: f.ignoreDevicePlugin,
	})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	if err := startServers(ctx, group, f, plugin); err != nil {
		return err
	}
	go dumpOnSignal(ctx, notifyDump(), plugin.State)
	group.Go(func() error { return plugin.Run(ctx) })
	return group.Wait()
}

// checkMPS looks for the program that serves MPS, which not every installation of
// the NVIDIA driver has.
func checkMPS(f *flags) error {
	const program = "nvidia-cuda-mps-control"
	if _, found := driverroot.Program(f.localDriverRoot, program); !found {
		return fmt.Errorf("the NVIDIA driver in %s comes without %s: install its compute utilities, or take mps out of the policy", f.hostDriverRoot, program)
	}
	return nil
}

// hookInstaller installs the hook once: a node without a GPU looks for its driver
// for ever. It is not safe for concurrent use.
type hookInstaller struct {
	from string
	done bool
}

func (h *hookInstaller) install(to string) error {
	if h.done {
		return nil
	}
	if err := removeHalfHooks(filepath.Dir(to)); err != nil {
		return err
	}
	if err := installHook(h.from, to); err != nil {
		return fmt.Errorf("%w: use the plugin's own image, or set --nvidia-cdi-hook-path to a hook on the host", err)
	}
	if err := checkExecutable(filepath.Dir(to)); err != nil {
		return err
	}
	h.done = true
	return nil
}

// checkExecutable refuses a file system from which the container runtime could not
// start the hook: every pod with a GPU would fail. A bind mount inherits the flag.
func checkExecutable(dir string) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return fmt.Errorf("look at the file system of %s: %w", dir, err)
	}
	if stat.Flags&unix.ST_NOEXEC != 0 {
		return fmt.Errorf("%s is mounted noexec, so the container runtime cannot start a hook from it: set --nvidia-cdi-hook-directory (the chart's nvidiaCDIHookDirectory) to a directory on the host from which programs run", dir)
	}
	return nil
}

// halfHookAge is more than a copy takes: a younger one may be of another plugin
// that starts now.
const halfHookAge = time.Minute

// removeHalfHooks removes the copies of processes that died in the middle.
func removeHalfHooks(dir string) error {
	halves, err := filepath.Glob(filepath.Join(dir, "."+hookName+"-*"))
	if err != nil {
		return err
	}
	for _, half := range halves {
		info, err := os.Lstat(half)
		if err != nil || time.Since(info.ModTime()) < halfHookAge {
			continue // it is another's and in use, or gone already
		}
		if err := os.Remove(half); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// installHook copies the hook to where the container runtime finds it. A container
// that starts meanwhile must not run half a file.
func installHook(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	draft := filepath.Join(filepath.Dir(to), "."+hookName+"-"+rand.Text())
	return atomicfile.Write(to, draft, source, 0o755)
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

// startServers serves health checks and metrics.
func startServers(ctx context.Context, group *errgroup.Group, f *flags, plugin *driver.Driver) error {
	if f.healthPort >= 0 {
		listener, err := listen("healthcheck-port", f.healthPort)
		if err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Serving health checks", "address", listener.Addr().String())
		group.Go(func() error { return plugin.ServeHealth(ctx, listener) })
	}
	if f.metricsPort >= 0 {
		listener, err := listen("metrics-port", f.metricsPort)
		if err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Serving metrics", "address", listener.Addr().String())
		group.Go(func() error { return serveMetrics(ctx, listener, plugin.Collectors()) })
	}
	return nil
}

func listen(flag string, port int) (net.Listener, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("listen on --%s: %w: choose a free port, or -1 for none", flag, err)
	}
	return listener, nil
}

// serveMetrics serves those of the process and, from a registry of their own because they
// belong to one plugin, those of its devices.
func serveMetrics(ctx context.Context, listener net.Listener, collectors []metrics.StableCollector) error {
	devices := metrics.NewKubeRegistry()
	for _, collector := range collectors {
		if err := devices.CustomRegister(collector); err != nil {
			return fmt.Errorf("register the metrics of devices: %w", err)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", metrics.HandlerFor(prometheus.Gatherers{legacyregistry.DefaultGatherer, devices}, metrics.HandlerOpts{
		DisableCompression: true, // a compressor of a few kilobytes has a megabyte itself
	}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		_ = server.Close() // a scrape that is cut off is repeated
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
