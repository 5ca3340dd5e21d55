package crash_test

import (
	"context"
	"encoding/json"
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
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/driverroot"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/wire"
)

// node is a machine whose plugin comes and goes, and whose GPUs stay.
type node struct {
	testing.TB
	*api
	dir string
	gpu wire.Client
}

func newNode(t testing.TB) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "mica-crash-") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{TB: t, api: newAPI(t), dir: dir, gpu: wire.Client{Socket: filepath.Join(dir, "root", driverroot.HostSocket)}}
	if err := os.Mkdir(n.path("registry"), 0o700); err != nil {
		t.Fatal(err)
	}
	kubeconfig := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n", n.URL)
	if err := os.WriteFile(n.path("kubeconfig"), []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	n.run("nvml-sim", "serve", "--node", "p5.48xlarge", "--root", n.path("root"))
	fixture.Eventually(t, "the simulator", func() error {
		_, err := n.gpu.State()
		return err
	})
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

// process is a child that ends with the test at the latest.
type process struct {
	*exec.Cmd
	log processLog
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
	p := &process{Cmd: exec.Command(filepath.Join(binaries, name), arguments...)}
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
}

// plugin is a running plugin process, as kubelet sees it.
type plugin struct {
	*process
	kubelet drapb.DRAPluginClient
}

// start starts a plugin process and waits until it answers.
func (n *node) start(arguments ...string) *plugin {
	n.Helper()
	p := &plugin{process: n.run("kubelet-plugin", append([]string{
		"--node-name=" + fixture.NodeName, "--kubeconfig=" + n.path("kubeconfig"), "--cdi-root=" + n.path("cdi"),
		"--kubelet-plugins-directory-path=" + n.path("plugins"), "--kubelet-registrar-directory-path=" + n.path("registry"),
		"--nvidia-driver-root=" + n.path("root"), "--container-driver-root=" + n.path("root"), "--nvidia-cdi-hook-path=/hook",
		"--healthcheck-port=-1", "--metrics-port=-1",
	}, arguments...)...)}
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
	fixture.Eventually(n, "the plugin", func() error {
		_, err := p.kubelet.NodePrepareResources(n.Context(), &drapb.NodePrepareResourcesRequest{})
		if err == nil && !n.isAway() && !strings.Contains(p.log.String(), "Offering GPUs") {
			return errors.New("it has not found its GPUs")
		}
		return err
	})
	return p
}

// state is the plugin's directory.
func (n *node) state() string { return filepath.Join(n.path("plugins"), fixture.Driver) }

func (p *plugin) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	response, err := p.kubelet.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{reference(claim)}})
	if err != nil {
		return err
	}
	if text := response.Claims[string(claim.UID)].GetError(); text != "" {
		return errors.New(text)
	}
	return nil
}

func (p *plugin) unprepare(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	response, err := p.kubelet.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{reference(claim)}})
	if err != nil {
		return err
	}
	if text := response.Claims[string(claim.UID)].GetError(); text != "" {
		return errors.New(text)
	}
	return nil
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

// devices lists the MIG devices of the machine by UUID, and what is half made.
func (n *node) devices() []string {
	n.Helper()
	state, err := n.gpu.State()
	n.must(err)
	var all []string
	for _, g := range state.GPUs {
		all = append(all, devicesOf(g)...)
	}
	slices.Sort(all)
	return all
}

func devicesOf(g model.GPUState) []string {
	var all []string
	for _, instance := range g.Instances {
		if len(instance.ComputeInstances) != 1 {
			all = append(all, fmt.Sprintf("GPU %d: %s at %d with %d compute instances", g.Index, instance.Profile, instance.Start, len(instance.ComputeInstances)))
			continue
		}
		all = append(all, instance.ComputeInstances[0].UUID)
	}
	return all
}

// recorded lists the MIG devices that the journal names, and the claims that
// have a record. Those of an intent are listed as such.
func (n *node) recorded() (devices, claims []string) {
	n.Helper()
	files, err := filepath.Glob(filepath.Join(n.state(), "claims", "*.json"))
	n.must(err)
	for _, file := range files {
		state, uuids, found := n.read(file)
		if !found {
			continue
		}
		claims = append(claims, strings.TrimSuffix(filepath.Base(file), ".json"))
		for _, uuid := range uuids {
			if state != "prepared" {
				uuid = "of an intent"
			}
			devices = append(devices, uuid)
		}
	}
	return devices, claims
}

// read leaves the journal's directory as it is, unlike opening it would.
func (n *node) read(file string) (state string, uuids []string, found bool) {
	n.Helper()
	content, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil, false
	}
	n.must(err)
	var envelope struct {
		Record struct {
			State   string
			Devices []struct{ Partition struct{ UUID string } }
		}
	}
	n.must(json.Unmarshal(content, &envelope))
	for _, device := range envelope.Record.Devices {
		uuids = append(uuids, device.Partition.UUID)
	}
	return envelope.Record.State, uuids, true
}

// specs lists the claims that have a CDI file, or files for their containers.
func (n *node) specs() []string {
	n.Helper()
	files, err := filepath.Glob(filepath.Join(n.path("cdi"), "mica-*"))
	n.must(err)
	for i, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "mica-"+fixture.Driver+"_"), ".files")
		files[i] = strings.TrimSuffix(name, ".json")
	}
	return slices.Compact(files)
}

// order tells what is not in order: a MIG device that no claim has and that was
// not there before, a claim without its devices, a CDI file without a claim.
func (n *node) order(foreign []string) error {
	n.Helper()
	want, claims := n.recorded()
	want = append(want, foreign...)
	slices.Sort(want)
	if got := n.devices(); !slices.Equal(got, want) {
		return fmt.Errorf("the machine has the MIG devices %q, and claims have %q", got, want)
	}
	if got := n.specs(); !slices.Equal(got, claims) {
		return fmt.Errorf("CDI files of %q, records of %q", got, claims)
	}
	state, err := n.gpu.State()
	if err != nil {
		return err
	}
	for _, g := range state.GPUs {
		if (g.MIGMode == "Enabled") != (len(g.Instances) > 0) {
			return fmt.Errorf("GPU %d: MIG is %s with %d instances", g.Index, g.MIGMode, len(g.Instances))
		}
	}
	return nil
}

// prepared tells whether exactly these claims are.
func (n *node) prepared(claims ...*resourceapi.ResourceClaim) error {
	n.Helper()
	var want []string
	for _, claim := range claims {
		want = append(want, string(claim.UID))
	}
	slices.Sort(want)
	if _, got := n.recorded(); !slices.Equal(got, want) {
		return fmt.Errorf("records of %q, want %q", got, want)
	}
	return nil
}

func (n *node) within() context.Context {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), time.Minute)
	n.Cleanup(cancel)
	return ctx
}
