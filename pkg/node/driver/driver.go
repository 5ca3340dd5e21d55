// Package driver is the plugin as kubelet and the API server see it: it serves kubelet's DRA calls,
// reports readiness, and wires the packages below it. pkg/node/prepare decides about claims,
// pkg/node/offer about what the node offers, and pkg/node/publish writes the slices.
package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/node/account"
	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/monitor"
	"github.com/mica-gpu/mica/pkg/node/mps"
	"github.com/mica-gpu/mica/pkg/node/offer"
	"github.com/mica-gpu/mica/pkg/node/prepare"
	"github.com/mica-gpu/mica/pkg/node/publish"
	"github.com/mica-gpu/mica/pkg/node/reset"
	"github.com/mica-gpu/mica/pkg/node/sample"
	"github.com/mica-gpu/mica/pkg/node/wake"
)

const (
	// releaseWait leaves room within kubelet's 45 s for the rest of a call.
	releaseWait = 20 * time.Second
	// goneWait leaves kubelet at least as long as a claim that waits for the GPU takes.
	goneWait = 25 * time.Second
	// drainTimeout is how long a stopping plugin waits for calls in flight. The chart's
	// terminationGracePeriodSeconds is longer.
	drainTimeout = 45 * time.Second
	// registrationPatience is how long devices wait for kubelet to register the plugin, which it tries
	// once a second (loopSleepDuration of its plugin manager). A pod that is scheduled before that fails
	// to prepare, and kubelet retries after 60 to 90 seconds.
	registrationPatience = 5 * time.Second
)

// Hardware is an open NVIDIA driver, divided by user.
type Hardware struct {
	GPUs offer.GPUs
	// Edits say what containers need to use GPUs.
	Edits prepare.Edits
	// Tools change how GPUs are partitioned and shared, apart from MPS control daemons.
	Tools prepare.Tools
	// Health watches the GPUs' health, and Resets resets sick ones.
	Health monitor.GPUs
	Resets reset.Hardware
	// Meter reads how busy a GPU or MIG device is, by UUID.
	Meter func(uuid string) sample.Meter
	// Check returns an error if a new process is needed to use the installed driver. It is called every
	// few seconds.
	Check func() error
	Close func() error
}

// Options configure a Driver. PodUID, Policies, MPSRoot, CheckMPS, Unsampled and Unnamed are optional.
type Options struct {
	// Name is the driver's name, normally slice.DefaultDriver.
	Name string
	// NodeName is the name of this node and of its pool.
	NodeName string
	// PodUID distinguishes two plugin pods during a rolling update; empty outside of a DaemonSet.
	PodUID types.UID
	// Client talks to the API server.
	Client kubernetes.Interface
	// Policies are the cluster's GPUPolicies; nil to ignore them.
	Policies offer.Policies
	// Open opens the NVIDIA driver; it is called until it succeeds.
	Open func(context.Context) (Hardware, error)
	// CDIRoot, PluginsDir and RegistrarDir are shared with the container runtime and kubelet.
	CDIRoot, PluginsDir, RegistrarDir string
	// BootID changes with each boot of the kernel.
	BootID string
	// MPSRoot is shared with the MPS supervisor; empty if the node has none.
	MPSRoot string
	// CheckMPS returns what the NVIDIA driver lacks for MPS, and what to do; nil if unknown.
	CheckMPS func() error
	// HealthQuiet is how long the cause of a fault must be absent before the GPU gets claims again.
	HealthQuiet time.Duration
	// Unsampled disables the measurement of how busy devices are.
	Unsampled bool
	// Unnamed keeps the names of claims and pods out of metrics.
	Unnamed bool
	// Containers list what containers still hold of a removed device plugin; nil to skip that check.
	Containers offer.Containers
	// IgnoreDevicePlugin offers GPUs even if a device plugin does or did.
	IgnoreDevicePlugin bool
}

// DataDir is the driver's directory for state and socket.
func DataDir(pluginsDir, name string) string { return filepath.Join(pluginsDir, name) }

// Driver is one plugin process. New only creates the state directory; Run does everything else.
type Driver struct {
	Options
	preparer  *prepare.Preparer
	specs     *cdi.Directory
	publisher *publish.Publisher
	offer     *offer.Offer
	monitor   *monitor.Monitor
	// healthBell rings when the health of devices has changed.
	healthBell bell
	resetter   *reset.Resetter
	reporter   *reporter
	events     *events
	daemons    *mps.Directory // nil without an MPS supervisor
	calls      calls
	// patience is registrationPatience outside of tests.
	patience time.Duration
	// newWatcher is fsnotify.NewWatcher outside of tests.
	newWatcher func() (*fsnotify.Watcher, error)
	failed     chan error
	samples    *sample.Sampler
	account    *account.Account
	claimants  *claimants
	// journaled is the last result of countPrepared.
	journaled atomic.Pointer[map[journal.State]journal.Tally]
	// counted wakes countClaims after claims have changed.
	counted wake.Signal
	// restored wakes reconcile after CDI files were written again.
	restored wake.Signal
	// hardware is written by watchHardware and read after it has returned.
	hardware Hardware
}

// New validates the options. Errors say what to change.
func New(options Options) (*Driver, error) {
	d := &Driver{
		Options:   options,
		publisher: publish.New(options.Client, options.Name, options.NodeName),
		reporter:  newReporter(options.Client, options.Name),
		events:    newEvents(options.Client, options.NodeName),
		failed:    make(chan error, 1),
		restored:  wake.New(),
		counted:   wake.New(),
		samples:   sample.New(),
		claimants: &claimants{known: map[string]account.Claim{}},
		calls:     calls{known: make(chan struct{})},
		patience:  registrationPatience,

		newWatcher: fsnotify.NewWatcher,
	}
	d.account = account.New(account.Options{Utilization: d.samples.Utilization, Unnamed: options.Unnamed})
	if options.MPSRoot != "" {
		d.daemons = mps.NewDirectory(options.MPSRoot)
	}
	if err := d.checkPaths(); err != nil {
		return nil, err
	}
	var err error
	if d.preparer, d.specs, err = NewPreparer(options, claimReader{options.Client, d.claimants.read}); err != nil {
		return nil, err
	}
	d.monitor = monitor.New(monitor.Options{
		File:    filepath.Join(DataDir(options.PluginsDir, options.Name), "health.json"),
		BootID:  options.BootID,
		Quiet:   options.HealthQuiet,
		Changed: d.healthChanged,
		Asked:   func() { d.offer.Used() },
		Repair:  func(ctx context.Context) { d.resetter.Look(ctx, d.hardware.Resets) },
		Notify:  d.notifyHealth,
		Stalled: d.notifyStall,
	})
	d.resetter = reset.New(reset.Options{
		Health:  d.monitor,
		Claims:  d.preparer,
		Allowed: func() health.ConditionSet { return d.offer.State().Resets },
		Notify:  d.notifyReset,
		Quiet:   options.HealthQuiet,
	})
	d.offer = offer.New(offer.Options{
		Driver:    options.Name,
		NodeName:  options.NodeName,
		Claims:    d.preparer,
		Publisher: d.publisher,
		Events:    d.events,
		Health:    d.monitor,
		Client:    options.Client,
		Policies:  options.Policies,
		CheckMPS:  d.checkMPS,

		Containers:         options.Containers,
		IgnoreDevicePlugin: options.IgnoreDevicePlugin,
	})
	return d, nil
}

// checkMPS returns what the node lacks for MPS.
func (d *Driver) checkMPS() error {
	switch {
	case d.MPSRoot == "":
		return errors.New("it runs no MPS supervisor: install the chart with mps.enabled=true, or remove mps from the policy")
	case d.CheckMPS != nil:
		return d.CheckMPS()
	}
	return nil
}

// maxSocketPath is the length of sun_path of sockaddr_un without its final NUL (unix(7)).
const maxSocketPath = 107

// checkPaths refuses paths that kubelet cannot reach.
func (d *Driver) checkPaths() error {
	registrar, dra := d.sockets()
	for flag, path := range map[string]string{
		"--kubelet-plugins-directory-path":   dra,
		"--kubelet-registrar-directory-path": registrar,
	} {
		if len(path) > maxSocketPath {
			return fmt.Errorf("socket path %s has %d bytes, %d more than the kernel allows: choose a shorter %s", path, len(path), len(path)-maxSocketPath, flag)
		}
	}
	if info, err := os.Stat(d.RegistrarDir); err != nil {
		return fmt.Errorf("look for kubelet's registration directory: %w: set --kubelet-registrar-directory-path to kubelet's <root-dir>/plugins_registry", err)
	} else if !info.IsDir() {
		return fmt.Errorf("kubelet's registration directory %s is not a directory: set --kubelet-registrar-directory-path to kubelet's <root-dir>/plugins_registry", d.RegistrarDir)
	}
	return nil
}

// Run serves until ctx ends or an error occurs that a restart may repair. It refuses new calls then,
// and finishes those in flight.
func (d *Driver) Run(ctx context.Context) error {
	// The helper outlives ctx, so that calls in flight can finish.
	helper, err := kubeletplugin.Start(context.WithoutCancel(ctx), d, d.helperOptions()...)
	if err != nil {
		return fmt.Errorf("serve kubelet: %w", err)
	}
	defer d.closeHardware(ctx)
	defer helper.Stop()
	defer d.calls.drain(ctx, drainTimeout)

	stopEvents := d.events.start()
	defer stopEvents()
	d.monitor.Load(ctx)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		d.calls.awaitRegistration(ctx, d.patience)
		return d.publisher.Run(ctx)
	})
	for _, run := range []func(context.Context) error{
		d.reporter.run, d.offer.Run, d.watchHardware, d.watchSpecs, d.reconcile, d.countClaims, d.removeDeadSockets, d.watchDaemons,
	} {
		group.Go(func() error { return run(ctx) })
	}
	group.Go(func() error {
		select {
		case err := <-d.failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (d *Driver) helperOptions() []kubeletplugin.Option {
	options := []kubeletplugin.Option{
		kubeletplugin.DriverName(d.Name),
		kubeletplugin.NodeName(d.NodeName),
		kubeletplugin.KubeClient(d.Client),
		kubeletplugin.RegistrarDirectoryPath(d.RegistrarDir),
		kubeletplugin.PluginDataDirectoryPath(DataDir(d.PluginsDir, d.Name)),
		// pkg/node/prepare serializes by claim and by GPU.
		kubeletplugin.Serialize(false),
		kubeletplugin.GRPCInterceptor(d.calls.intercept),
	}
	if d.PodUID != "" {
		options = append(options, kubeletplugin.RollingUpdate(d.PodUID))
	}
	return options
}

// Ready returns nil if pods can get GPUs from this process: kubelet has registered it, and the API
// server has its devices.
func (d *Driver) Ready() error {
	if !d.calls.registered.Load() {
		return errors.New("kubelet has not registered the plugin yet")
	}
	if !d.publisher.Published() {
		return errors.New("the node's devices are not published yet")
	}
	return nil
}

// Collectors returns the metrics of this node: usage of prepared claims' devices, their holders, and
// counts of devices by state.
func (d *Driver) Collectors() []metrics.StableCollector {
	return []metrics.StableCollector{d.samples, d.account, &census{state: d.offer.State, health: d.monitor.Record, holds: d.account.Holds, tallies: d.tallies}}
}
