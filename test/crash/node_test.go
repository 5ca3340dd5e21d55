package crash_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/kubelet"
	"github.com/mica-gpu/mica/test/nvmlsim/driverroot"
	"github.com/mica-gpu/mica/test/nvmlsim/wire"
)

// node is a machine whose plugin comes and goes, and whose GPUs stay.
type node struct {
	testing.TB
	*api
	dir string
	// driver is the root of the NVIDIA driver.
	driver string
	// gpu controls the simulator, if the driver is simulated.
	gpu wire.Client
	// supervisor keeps MPS daemons, nil where the node has none.
	supervisor *process
	// modes are compute modes that an administrator has set, and idleMIG is where MIG is
	// enabled for nothing, by GPU.
	modes   map[int]string
	idleMIG map[int]bool
	// starter runs the processes of the node, nil for none.
	starter []string
}

func newNode(t testing.TB, policies ...runtime.Object) *node {
	t.Helper()
	return newMachine(t, "p5.48xlarge", policies...)
}

// newMachine is the machine that the simulator knows by that name, or that a file describes.
func newMachine(t testing.TB, description string, policies ...runtime.Object) *node {
	t.Helper()
	n := newHost(t, policies...)
	n.driver = n.path("root")
	n.gpu = wire.Client{Socket: filepath.Join(n.driver, driverroot.HostSocket)}
	n.run("nvml-sim", "serve", "--node", description, "--root", n.driver)
	fixture.Eventually(t, "the simulator", func() error {
		_, err := n.gpu.State()
		return err
	})
	return n
}

// newHost is a node without a driver.
func newHost(t testing.TB, policies ...runtime.Object) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "mica-crash-") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{
		TB: t, api: newAPI(t, policies...), dir: dir,
		modes: map[int]string{}, idleMIG: map[int]bool{},
	}
	if err := os.Mkdir(n.path("registry"), 0o700); err != nil {
		t.Fatal(err)
	}
	kubeconfig := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n", n.URL)
	if err := os.WriteFile(n.path("kubeconfig"), []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	go kubelet.Know(t.Context(), n.path("registry"))
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

// process is a child that ends with the test at the latest.
type process struct {
	*exec.Cmd
	log  processLog
	dead bool
}

// processLog is what a process logs.
type processLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *processLog) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *processLog) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

func (n *node) run(name string, arguments ...string) *process {
	n.Helper()
	command := slices.Concat(n.starter, []string{filepath.Join(binaries, name)}, arguments)
	p := &process{Cmd: exec.Command(command[0], command[1:]...)}
	p.Stderr = &p.log
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.Start(); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() {
		p.kill()
		if n.Failed() {
			n.Logf("%s:\n%s", name, p.log.String())
		}
	})
	return p
}

// kill ends the process at once, if it has not ended.
func (p *process) kill() {
	_ = p.Process.Kill()
	_ = p.Wait()
	p.dead = true
}

// plugin is a running plugin process, as kubelet sees it.
type plugin struct {
	*process
	kubelet drapb.DRAPluginClient
}

// supervise starts the supervisor of MPS daemons and waits until it supervises.
func (n *node) supervise() {
	n.Helper()
	n.supervisor = n.run("kubelet-plugin", "mps", "--mps-root="+n.path("mps"), "--mps-shm=", "--container-driver-root="+n.driver, "--healthcheck-port=-1")
	fixture.Eventually(n, "the supervisor", func() error {
		if !strings.Contains(n.supervisor.log.String(), "Supervising MPS control daemons") {
			return errors.New("it does not supervise")
		}
		return nil
	})
}

func (n *node) mpsArguments() []string {
	if n.supervisor == nil {
		return nil
	}
	return []string{"--mps-root=" + n.path("mps")}
}

// start starts a plugin process and waits until it answers.
func (n *node) start(arguments ...string) *plugin {
	n.Helper()
	p := n.reach(n.run("kubelet-plugin", append(n.arguments(n.driver), arguments...)...), arguments...)
	fixture.Eventually(n, "the plugin", func() error {
		_, err := p.kubelet.NodePrepareResources(n.Context(), &drapb.NodePrepareResourcesRequest{})
		if err == nil && !n.isAway() && !strings.Contains(p.log.String(), "Offering GPUs") {
			return errors.New("it has not found its GPUs")
		}
		return err
	})
	return p
}

// arguments are those of a plugin whose driver is in that directory.
func (n *node) arguments(driverRoot string) []string {
	return append([]string{
		"--node-name=" + fixture.NodeName, "--kubeconfig=" + n.path("kubeconfig"), "--cdi-root=" + n.path("cdi"),
		"--kubelet-plugins-directory-path=" + n.path("plugins"), "--kubelet-registrar-directory-path=" + n.path("registry"),
		"--nvidia-driver-root=" + driverRoot, "--container-driver-root=" + driverRoot, "--nvidia-cdi-hook-path=/hook",
		"--healthcheck-port=-1", "--metrics-port=-1", "--ignore-device-plugin", // there is no kubelet to ask
	}, n.mpsArguments()...)
}

// reach connects to the plugin's socket as kubelet does, when there is one.
func (n *node) reach(process *process, arguments ...string) *plugin {
	n.Helper()
	p := &plugin{process: process}
	socket := "dra.sock"
	if len(arguments) > 0 {
		socket = "dra-" + strings.TrimPrefix(arguments[0], "--pod-uid=") + ".sock"
	}
	connection, err := grpc.NewClient("unix://"+filepath.Join(n.state(), socket), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, MaxDelay: 10 * time.Millisecond}}))
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { connection.Close() })
	p.kubelet = drapb.NewDRAPluginClient(connection)
	return p
}

// state is the plugin's directory.
func (n *node) state() string { return filepath.Join(n.path("plugins"), fixture.Driver) }

func (p *plugin) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	response, err := p.kubelet.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{reference(claim)}})
	return claimError(err, response.GetClaims()[string(claim.UID)].GetError())
}

func (p *plugin) unprepare(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	response, err := p.kubelet.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{reference(claim)}})
	return claimError(err, response.GetClaims()[string(claim.UID)].GetError())
}

// claimError is the error of a call, or that of its only claim.
func claimError(err error, ofClaim string) error {
	if err == nil && ofClaim != "" {
		return errors.New(ofClaim)
	}
	return err
}

func reference(claim *resourceapi.ResourceClaim) *drapb.Claim {
	return &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

func (n *node) within() context.Context {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), time.Minute)
	n.Cleanup(cancel)
	return ctx
}
