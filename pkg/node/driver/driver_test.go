package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2/ktesting"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/pkg/node/prepare"
	"github.com/mica-gpu/mica/pkg/node/reset"
	"github.com/mica-gpu/mica/pkg/node/sample"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// hardware is a node's NVIDIA driver.
type hardware struct {
	edits   fixture.Edits
	machine *model.Machine
	library *nvml.Library
	node    gpu.Node

	mu     sync.Mutex
	fails  []error // one for each call of Open, before it succeeds
	opened int
	closed int
	// replaced is why the process cannot go on.
	replaced error
}

// sliceCount is the whole GPUs', the counters', and one for the partitions of each GPU.
const sliceCount = 10

func newHardware(t testing.TB) *hardware {
	t.Helper()
	machine := fixture.Machine(t, fixture.File(t, "p5.48xlarge"))
	return &hardware{machine: machine, library: fixture.Library(t, machine), node: fixture.Node(t, "p5.48xlarge")}
}

// open is Options.Open.
func (h *hardware) open(context.Context) (Hardware, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.fails) > 0 {
		err := h.fails[0]
		h.fails = h.fails[1:]
		return Hardware{}, err
	}
	h.opened++
	return Hardware{
		GPUs: h, Edits: &h.edits, Tools: prepare.Tools{MIG: h.library, Modes: h.library},
		Health: h.library, Resets: reset.Hardware{GPUs: h.library, Program: h},
		Meter: func(uuid string) sample.Meter { return h.library.Meter(uuid) },
		Check: h.check, Close: h.close,
	}, nil
}

// Reset implements reset.Program.
func (h *hardware) Reset(ctx context.Context, uuid string) error {
	return h.machine.ResetByUUID(ctx, uuid)
}

// Discover implements offer.GPUs.
func (h *hardware) Discover() (gpu.Node, []error, error) { return h.node, nil, nil }

// Refresh implements offer.GPUs.
func (h *hardware) Refresh(gpus []gpu.GPU) ([]gpu.GPU, error) { return h.library.Refresh(gpus) }

// Persistent implements offer.GPUs.
func (h *hardware) Persistent() (bool, error) { return h.library.Persistent() }

// Rest implements offer.GPUs.
func (h *hardware) Rest() (bool, error) { return h.library.Rest() }

// check says that the driver was replaced, from when it was.
func (h *hardware) check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.replaced
}

func (h *hardware) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed++
	return nil
}

// options are those of a driver on a node of its own. Its paths are short, as
// sockets need.
func options(t testing.TB, api *apiserver.Server, h *hardware) Options {
	t.Helper()
	dir, err := os.MkdirTemp("", "mica-")
	must(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	o := Options{
		Name: fixture.Driver, NodeName: fixture.NodeName, Client: api, Open: h.open, BootID: "boot-1", HealthQuiet: time.Minute,
		CDIRoot: filepath.Join(dir, "cdi"), PluginsDir: filepath.Join(dir, "plugins"), RegistrarDir: filepath.Join(dir, "registry"),
	}
	must(t, os.Mkdir(o.RegistrarDir, 0o700))
	return o
}

func newDriver(t testing.TB, o Options) *Driver {
	t.Helper()
	d, err := New(o)
	must(t, err)
	return d
}

// run runs the driver until stop is called, or the test ends.
func run(t testing.TB, o Options, changes ...func(*Driver)) (d *Driver, stop func()) {
	t.Helper()
	d = newDriver(t, o)
	d.patience = time.Millisecond // most tests are no kubelet
	for _, change := range changes {
		change(d)
	}
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the driver ended with %v", err)
		}
	})
	t.Cleanup(stop)
	return d, stop
}

// kubelet talks to a plugin as kubelet does.
type kubelet struct {
	t    testing.TB
	conn *grpc.ClientConn
}

func dial(t testing.TB, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// register finds the plugin in the directory of registration sockets.
func register(t testing.TB, o Options) kubelet {
	t.Helper()
	var sockets []string
	fixture.Eventually(t, "the registration socket", func() (err error) {
		sockets, err = filepath.Glob(filepath.Join(o.RegistrarDir, "*.sock"))
		if len(sockets) != 1 {
			return errors.Join(err, fmt.Errorf("found %q", sockets))
		}
		return nil
	})
	registration := registerapi.NewRegistrationClient(dial(t, sockets[0]))
	var info *registerapi.PluginInfo
	fixture.Eventually(t, "the plugin's information", func() (err error) {
		info, err = registration.GetInfo(t.Context(), &registerapi.InfoRequest{})
		return err
	})
	if info.GetType() != registerapi.DRAPlugin || info.GetName() != fixture.Driver {
		t.Fatalf("got %v", info)
	}
	if !slices.Contains(info.GetSupportedVersions(), drapb.DRAPluginService) {
		t.Errorf("the plugin supports %q, not %s", info.GetSupportedVersions(), drapb.DRAPluginService)
	}
	if _, err := registration.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		t.Fatal(err)
	}
	return kubelet{t, dial(t, info.GetEndpoint())}
}

// serving runs a driver until kubelet has registered it and it is ready.
func serving(t testing.TB, o Options, changes ...func(*Driver)) (*Driver, kubelet, func()) {
	t.Helper()
	d, stop := run(t, o, changes...)
	k := register(t, o)
	fixture.Eventually(t, "readiness", d.Ready)
	return d, k, stop
}

func reference(claim *resourceapi.ResourceClaim) *drapb.Claim {
	return &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}
}

func (k kubelet) prepare(claims ...*resourceapi.ResourceClaim) map[string]*drapb.NodePrepareResourceResponse {
	k.t.Helper()
	request := &drapb.NodePrepareResourcesRequest{}
	for _, claim := range claims {
		request.Claims = append(request.Claims, reference(claim))
	}
	response, err := drapb.NewDRAPluginClient(k.conn).NodePrepareResources(k.t.Context(), request)
	if err != nil {
		k.t.Fatal(err)
	}
	return response.GetClaims()
}

// tries prepares a claim that fails until the node has its GPUs.
func (k kubelet) tries(claim *resourceapi.ResourceClaim) func() error {
	return func() error {
		if text := k.prepare(claim)[string(claim.UID)].GetError(); text != "" {
			return errors.New(text)
		}
		return nil
	}
}

// prepared prepares a claim that must succeed, and returns the CDI names.
func (k kubelet) prepared(claim *resourceapi.ResourceClaim) []string {
	k.t.Helper()
	answer := k.prepare(claim)[string(claim.UID)]
	if answer.GetError() != "" {
		k.t.Fatal(answer.GetError())
	}
	var ids []string
	for _, device := range answer.GetDevices() {
		ids = append(ids, device.GetCdiDeviceIds()...)
	}
	return ids
}

func (k kubelet) unprepare(claim *resourceapi.ResourceClaim) {
	k.t.Helper()
	response, err := drapb.NewDRAPluginClient(k.conn).NodeUnprepareResources(k.t.Context(),
		&drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{reference(claim)}})
	if err != nil {
		k.t.Fatal(err)
	}
	if text := response.GetClaims()[string(claim.UID)].GetError(); text != "" {
		k.t.Fatal(text)
	}
}

func specs(t testing.TB, o Options) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(o.CDIRoot, "*.json"))
	must(t, err)
	return found
}

func TestTheMainJob(t *testing.T) {
	for name, podUID := range map[string]types.UID{"alone": "", "rolling update": "0a1b2c3d-0000-4000-8000-000000000000"} {
		t.Run(name, func(t *testing.T) {
			one, two := fixture.Claim("one", fixture.Result("a", "gpu-0"), fixture.Result("b", "gpu-5")), fixture.Claim("two", fixture.Result("a", "gpu-3"))
			broken := fixture.Claim("broken", fixture.Result("a", "gpu-9"))
			api, h := apiserver.New(one, two, broken), newHardware(t)
			o := options(t, api, h)
			o.PodUID = podUID
			d, stop := run(t, o)
			if err := d.Ready(); err == nil {
				t.Error("ready before kubelet knows the plugin")
			}
			k := register(t, o)
			fixture.Eventually(t, "readiness", d.Ready)
			if got := len(api.Slices(t)); got != sliceCount {
				t.Errorf("got %d slices", got)
			}

			answers := k.prepare(one, two, broken)
			if len(answers) != 3 {
				t.Errorf("got answers for %d claims", len(answers))
			}
			for _, fact := range []string{"ready: yes", ", 8 GPUs\n", "claim default/one (", "  request b has gpu-5 of GPU-", "offered: gpu-0 GPU-"} {
				if state := d.State(t.Context()); !strings.Contains(state, fact) {
					t.Errorf("the state lacks %q:\n%s", fact, state)
				}
			}
			if text := answers["uid-broken"].GetError(); !strings.Contains(text, `claim default/broken (UID uid-broken): request "a": device gpu-9 is not on this node`) {
				t.Errorf("got error %q for the claim that is at fault", text)
			}
			devices := answers["uid-one"].GetDevices()
			if len(devices) != 2 || devices[0].GetDeviceName() != "gpu-0" || devices[1].GetDeviceName() != "gpu-5" ||
				devices[1].GetPoolName() != fixture.NodeName || !slices.Equal(devices[1].GetRequestNames(), []string{"b"}) {
				t.Errorf("got devices %v", devices)
			}
			if ids, want := k.prepared(two), []string{"gpu.nvidia.com/claim=uid-two-gpu-3"}; !slices.Equal(ids, want) {
				t.Errorf("got %q, want %q", ids, want)
			}
			if got := specs(t, o); len(got) != 2 {
				t.Errorf("got CDI files %q", got)
			}
			k.unprepare(one)
			k.unprepare(two)
			k.unprepare(two)
			if got := specs(t, o); len(got) != 0 {
				t.Errorf("got CDI files %q", got)
			}
			stop()
			if h.opened != 1 || h.closed != 1 {
				t.Errorf("the NVIDIA driver was opened %d times and closed %d times", h.opened, h.closed)
			}
			if left, err := filepath.Glob(filepath.Join(o.RegistrarDir, "*")); err != nil || len(left) > 0 {
				t.Errorf("the sockets %q are left behind, %v", left, err)
			}
		})
	}
}

// A pod that kubelet gets before it knows the plugin would wait a minute for its GPU.
func TestDevicesArePublishedWhenKubeletKnowsThePlugin(t *testing.T) {
	offered := func(d *Driver) {
		t.Helper()
		fixture.Eventually(t, "the offer", func() error {
			if len(d.offer.State().Shapes) == 0 {
				return errors.New("nothing is offered")
			}
			return nil
		})
	}
	published := func(api *apiserver.Server) {
		t.Helper()
		fixture.Eventually(t, "the slices", func() error {
			if got := len(api.Slices(t)); got != sliceCount {
				return fmt.Errorf("there are %d", got)
			}
			return nil
		})
	}
	t.Run("kubelet registers it", func(t *testing.T) {
		api := apiserver.New()
		o := options(t, api, newHardware(t))
		d, _ := run(t, o, func(d *Driver) { d.patience = time.Hour })
		offered(d)
		if got := len(api.Slices(t)); got > 0 {
			t.Errorf("there are %d slices before kubelet knows the plugin", got)
		}
		register(t, o)
		published(api)
	})
	t.Run("kubelet never does", func(t *testing.T) {
		api := apiserver.New()
		d, _ := run(t, options(t, api, newHardware(t)), func(d *Driver) { d.patience = time.Second / 10 })
		offered(d)
		published(api)
	})
}

// During a rolling update two processes serve the node.
func TestTwoProcessesOfOneNode(t *testing.T) {
	claim := fixture.Claim("one", fixture.Result("a", "gpu-0"))
	api, h := apiserver.New(claim), newHardware(t)
	o := options(t, api, h)
	o.PodUID = "old"
	_, k, stopOld := serving(t, o)
	first := k.prepared(claim)
	o.PodUID = "new"
	before, err := filepath.Glob(filepath.Join(o.RegistrarDir, "*.sock"))
	must(t, err)
	d, _ := run(t, o)
	fixture.Eventually(t, "a second socket", func() error {
		now, err := filepath.Glob(filepath.Join(o.RegistrarDir, "*.sock"))
		if len(now) != len(before)+1 {
			return errors.Join(err, fmt.Errorf("found %q", now))
		}
		return nil
	})
	stopOld()
	k = register(t, o)
	if again := k.prepared(claim); !slices.Equal(first, again) {
		t.Errorf("the first process answered %q, the second %q", first, again)
	}
	fixture.Eventually(t, "readiness", d.Ready)
	k.unprepare(claim)
	if got := specs(t, o); len(got) != 0 {
		t.Errorf("got CDI files %q", got)
	}
}

func TestANodeWhoseDriverIsLoadedLater(t *testing.T) {
	claim := fixture.Claim("one", fixture.Result("a", "gpu-0"))
	api, h := apiserver.New(claim), newHardware(t)
	loaded := make(chan struct{})
	o := options(t, api, h)
	o.Open = func(ctx context.Context) (Hardware, error) {
		select {
		case <-loaded:
			return h.open(ctx)
		default:
			return Hardware{}, errors.New("NVIDIA kernel driver is not loaded")
		}
	}
	d, _ := run(t, o)
	k := register(t, o)
	fixture.Eventually(t, "readiness of an idle node", d.Ready)
	if got := len(api.Slices(t)); got != 0 {
		t.Errorf("got %d slices", got)
	}
	if text := k.prepare(claim)["uid-one"].GetError(); !strings.Contains(text, "the NVIDIA driver on this node does not answer yet") {
		t.Errorf("got error %q", text)
	}
	close(loaded)
	fixture.Eventually(t, "slices", func() error {
		if got := len(api.Slices(t)); got != sliceCount {
			return fmt.Errorf("got %d slices", got)
		}
		return d.Ready()
	})
	k.prepared(claim)
}

// The runtime reads CDI files at each start of a container, long after kubelet's
// last call for its claim.
func TestRemovedCDIFilesAreRestored(t *testing.T) {
	one, two := fixture.Claim("one", fixture.Result("a", "gpu-0")), fixture.Claim("two", fixture.Result("a", "gpu-1"))
	o := options(t, apiserver.New(one, two), newHardware(t))
	run(t, o)
	k := register(t, o)
	fixture.Eventually(t, "the first claim", k.tries(one))
	k.prepared(two)
	all := func() error {
		if got := specs(t, o); len(got) != 2 {
			return fmt.Errorf("got CDI files %q", got)
		}
		return nil
	}
	for _, path := range append(specs(t, o), o.CDIRoot) {
		// The watch may only begin after the claims were prepared, so that the
		// first removal goes unseen: only what is removed under it comes back.
		fixture.Eventually(t, "the watch of "+path, func() error {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
			deadline := time.Now().Add(3 * time.Second)
			for all() != nil && time.Now().Before(deadline) {
				time.Sleep(5 * time.Millisecond)
			}
			return all()
		})
	}
	k.unprepare(one)
	k.unprepare(two)
	if got := specs(t, o); len(got) != 0 {
		t.Errorf("got CDI files %q", got)
	}
}

// A mount whose source was removed cannot be mended from within the container.
func TestACDIDirectoryThatCannotBeMadeAnewEndsTheProcess(t *testing.T) {
	d := newDriver(t, options(t, apiserver.New(), newHardware(t)))
	must(t, os.Remove(d.CDIRoot))
	if err := os.WriteFile(d.CDIRoot, nil, 0o600); err != nil { // it can be watched all the same
		t.Fatal(err)
	}
	done := make(chan error, 1)
	_, ctx := ktesting.NewTestContext(t)
	go func() { done <- d.watchSpecs(ctx) }()
	fixture.Eventually(t, "the end", func() error {
		_ = os.Remove(d.CDIRoot)
		_ = os.WriteFile(d.CDIRoot, nil, 0o600)
		select {
		case err := <-done:
			fixture.Sentence(t, err, "create the CDI directory again", "restart this container")
			return nil
		default:
			return errors.New("it goes on")
		}
	})
}

// What a process that was killed left behind is in order soon after the start.
func TestAStartRepairs(t *testing.T) {
	vanished, gone := fixture.Claim("vanished", fixture.Result("a", "gpu-0")), fixture.Claim("gone", fixture.Result("a", "gpu-1"))
	api := apiserver.New(vanished, gone)
	o := options(t, api, newHardware(t))
	_, stop := run(t, o)
	k := register(t, o)
	fixture.Eventually(t, "the claims", k.tries(vanished))
	k.prepared(gone)
	stop()
	must(t, os.RemoveAll(o.CDIRoot))
	must(t, api.ResourceV1().ResourceClaims(gone.Namespace).Delete(t.Context(), gone.Name, metav1.DeleteOptions{}))
	run(t, o)
	fixture.Eventually(t, "the CDI file of the claim that lives", func() error {
		if got := specs(t, o); len(got) != 1 || !strings.Contains(got[0], "uid-vanished") {
			return fmt.Errorf("got CDI files %q", got)
		}
		return nil
	})
}

func TestNewRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(t *testing.T, o *Options)
		want   []string
	}{
		"a plugins directory that is too long": {
			func(_ *testing.T, o *Options) { o.PluginsDir = "/" + strings.Repeat("p", 100) },
			[]string{"dra.sock has 125 bytes, 18 more than the kernel allows", "choose a shorter --kubelet-plugins-directory-path"},
		},
		"a registrar directory that is too long": {
			func(_ *testing.T, o *Options) { o.RegistrarDir = "/" + strings.Repeat("r", 100) },
			[]string{"more than the kernel allows", "choose a shorter --kubelet-registrar-directory-path"},
		},
		"a registrar directory that is not there": {
			func(_ *testing.T, o *Options) { o.RegistrarDir += "-missing" },
			[]string{"look for kubelet's registration directory", "no such file or directory", "set --kubelet-registrar-directory-path"},
		},
		"a registrar directory that is a file": {
			func(t *testing.T, o *Options) { o.RegistrarDir = file(t) },
			[]string{"is not a directory", "set --kubelet-registrar-directory-path"},
		},
		"a plugins directory that is a file": {
			func(t *testing.T, o *Options) { o.PluginsDir = file(t) },
			[]string{"create state directory", "choose a writable --kubelet-plugins-directory-path"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t, apiserver.New(), newHardware(t))
			tc.change(t, &o)
			_, err := New(o)
			fixture.Sentence(t, err, tc.want...)
		})
	}
}

func file(t *testing.T) string {
	t.Helper()
	file, err := os.CreateTemp("", "mica-")
	must(t, err)
	t.Cleanup(func() {
		if err := os.Remove(file.Name()); err != nil {
			t.Error(err)
		}
	})
	return file.Name()
}

func TestRunEndsWithAServerThatCannotServe(t *testing.T) {
	d := newDriver(t, options(t, apiserver.New(), newHardware(t)))
	d.HandleError(t.Context(), fmt.Errorf("again: %w", kubeletplugin.ErrRecoverable), "slices")
	d.HandleError(t.Context(), errors.New("socket is gone"), "gRPC server")
	d.HandleError(t.Context(), errors.New("and another"), "gRPC server")
	_, ctx := ktesting.NewTestContext(t)
	fixture.Sentence(t, d.Run(ctx), "gRPC server: socket is gone")
}

func TestHealth(t *testing.T) {
	o := options(t, apiserver.New(), newHardware(t))
	d := newDriver(t, o)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- d.ServeHealth(ctx, listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	health := grpc_health_v1.NewHealthClient(conn)
	expect := func(want grpc_health_v1.HealthCheckResponse_ServingStatus, services ...string) {
		t.Helper()
		for _, service := range services {
			fixture.Eventually(t, fmt.Sprintf("service %q is %s", service, want), func() error {
				answer, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service})
				if err == nil && answer.GetStatus() != want {
					err = fmt.Errorf("it is %s", answer.GetStatus())
				}
				return err
			})
		}
	}
	expect(grpc_health_v1.HealthCheckResponse_NOT_SERVING, "", "liveness", "readiness")
	if _, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "happiness"}); status.Code(err) != codes.NotFound ||
		!strings.Contains(err.Error(), `ask for "liveness" or "readiness"`) {
		t.Errorf("got %v for an unknown service", err)
	}

	_, runCtx := ktesting.NewTestContext(t)
	runCtx, stop := context.WithCancel(runCtx)
	done := make(chan error, 1)
	go func() { done <- d.Run(runCtx) }()
	expect(grpc_health_v1.HealthCheckResponse_SERVING, "", "liveness")
	expect(grpc_health_v1.HealthCheckResponse_NOT_SERVING, "readiness")
	register(t, o)
	expect(grpc_health_v1.HealthCheckResponse_SERVING, "", "liveness", "readiness")
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	expect(grpc_health_v1.HealthCheckResponse_NOT_SERVING, "", "liveness")
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
