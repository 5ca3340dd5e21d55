package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mica-gpu/mica/test/cluster/internal/layout"
	"github.com/mica-gpu/mica/test/cluster/internal/process"
	"github.com/mica-gpu/mica/test/cluster/internal/render"
	"github.com/mica-gpu/mica/test/cluster/internal/sandbox"
)

// Supervisor runs one cluster. Its fields belong to the goroutine of Run.
type Supervisor struct {
	spec Spec
	// api is the machine's socket that leads to the API server.
	api net.Listener
	// progress receives a line a step, and Ready when the node is.
	progress io.WriteCloser
	began    time.Time

	components map[string]*component
	ended      chan *process.Process
	again      chan *process.Process
	asks       chan ask
	finished   chan struct{}
}

// Ready is the last line of progress of a cluster that came up.
const Ready = "ready"

// New prepares a supervisor.
func New(spec Spec, api net.Listener, progress io.WriteCloser) *Supervisor {
	s := &Supervisor{
		spec:       spec,
		api:        api,
		progress:   progress,
		began:      time.Now(),
		components: map[string]*component{},
		ended:      make(chan *process.Process),
		again:      make(chan *process.Process),
		asks:       make(chan ask),
		finished:   make(chan struct{}),
	}
	for name, command := range commands(spec) {
		s.components[name] = &component{command: command}
	}
	return s
}

// Run starts the cluster and keeps it until ctx ends, which is no error, or a
// component does. It leaves processes behind: the sandbox's end is theirs.
func (s *Supervisor) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer close(s.finished)
	if err := s.begin(ctx); err != nil {
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case ended := <-s.ended:
			if err := s.handleEnd(ended); err != nil {
				return err
			}
		case ended := <-s.again:
			if err := s.startAgain(ended); err != nil {
				return err
			}
		case question := <-s.asks:
			question.reply <- s.obey(question.request)
		}
	}
}

// begin brings the cluster up to a node that takes pods.
func (s *Supervisor) begin(ctx context.Context) error {
	snapshotter, err := s.prepare()
	if err != nil {
		return err
	}
	client, err := newAPI(s.spec.Dir)
	if err != nil {
		return err
	}
	go forward(ctx, s.api, fmt.Sprintf("127.0.0.1:%d", layout.APIPort))
	if err := s.startControlPlane(ctx, client); err != nil {
		return err
	}
	if err := s.startNode(ctx, client); err != nil {
		return err
	}
	info := s.info(snapshotter)
	if err := saveJSON(s.spec.Dir.Info(), info); err != nil {
		return err
	}
	if err := s.listen(ctx); err != nil {
		return err
	}
	s.report("node %s takes pods", layout.NodeName)
	fmt.Fprintln(s.progress, Ready)
	return s.progress.Close()
}

// prepare sets the sandbox up and writes every file that components read.
func (s *Supervisor) prepare() (snapshotter string, err error) {
	dir := s.spec.Dir
	for _, path := range []string{dir.PKI(), filepath.Join(dir.Config(), "cni"), dir.Etcd(), dir.Kubelet(), dir.CDI(), dir.Containerd(), dir.Run(), dir.Logs()} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return "", fmt.Errorf("making the cluster's directories: %w", err)
		}
	}
	if err := isolate(dir); err != nil {
		return "", err
	}
	snapshotter = "overlayfs"
	if !sandbox.Overlays(string(dir)) {
		snapshotter = "native"
	}
	if err := writeCredentials(s.spec); err != nil {
		return "", err
	}
	baseSpec, err := s.writeBaseSpec()
	if err != nil {
		return "", err
	}
	files, err := render.Node{
		Dir:         dir,
		BaseSpec:    baseSpec,
		CNIBin:      filepath.Dir(s.spec.Binaries["ptp"]),
		Runc:        s.spec.Binaries["runc"],
		Snapshotter: snapshotter,
		CgroupV1:    !sandbox.Unified(),
		SysResource: hasCapability(unix.CAP_SYS_RESOURCE),
	}.Files()
	if err != nil {
		return "", err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir.Config(), name), text, 0o644); err != nil {
			return "", fmt.Errorf("writing the cluster's configuration: %w", err)
		}
	}
	return snapshotter, nil
}

// isolate gives the sandbox its addresses and keeps programs with fixed paths
// from the machine's directories: kubelet writes /var/log/containers, the CNI
// library /var/lib/cni, mount(8) /run/mount, and Mica links and devices of simulated GPUs.
func isolate(dir layout.Dir) error {
	if err := sandbox.Address(layout.NodeIP, layout.ClusterIP); err != nil {
		return err
	}
	if err := sandbox.Replace("/var/log", dir.Shadow("/var/log")); err != nil {
		return err
	}
	if err := sandbox.MakeDevices(); err != nil {
		return err
	}
	for _, path := range append([]string{"/var/lib", "/run"}, sandbox.Devices...) {
		if err := sandbox.Shadow(path, dir.Shadow(path)); err != nil {
			return err
		}
	}
	return sandbox.Share()
}

func (s *Supervisor) startControlPlane(ctx context.Context, client *api) error {
	// What needs nothing of the control plane starts meanwhile.
	early := []string{etcd, containerd}
	if s.spec.SimNode != "" {
		early = append(early, simulator)
	}
	for _, name := range early {
		if err := s.start(name); err != nil {
			return err
		}
	}
	if err := s.await(ctx, etcd, answers("tcp", etcdAddress)); err != nil {
		return err
	}
	s.report("etcd answers")
	if err := s.start(apiserver); err != nil {
		return err
	}
	if err := s.await(ctx, containerd, answers("unix", s.spec.Dir.ContainerdSocket())); err != nil {
		return err
	}
	if err := s.importImages(ctx); err != nil {
		return err
	}
	s.report("containerd holds the images")
	if err := s.await(ctx, apiserver, client.ready); err != nil {
		return err
	}
	s.report("the API server is ready")
	for _, name := range []string{controllerManager, scheduler} {
		if err := s.start(name); err != nil {
			return err
		}
	}
	return nil
}

func (s *Supervisor) startNode(ctx context.Context, client *api) error {
	if s.spec.SimNode != "" {
		if err := s.await(ctx, simulator, answers("unix", s.spec.Dir.SimSocket())); err != nil {
			return err
		}
		s.report("the NVML simulator answers")
	}
	if err := s.start(kubelet); err != nil {
		return err
	}
	if err := s.await(ctx, "the node's registration", client.registered); err != nil {
		return err
	}
	s.report("kubelet has registered the node")
	if err := client.label(ctx); err != nil {
		return err
	}
	return s.await(ctx, "the node", client.schedulable)
}

// importImages loads the archives that every cluster holds.
func (s *Supervisor) importImages(ctx context.Context) error {
	for _, archive := range s.spec.Images {
		if err := Import(ctx, s.spec.Binaries["ctr"], s.spec.Dir, archive); err != nil {
			return err
		}
	}
	return nil
}

// Import loads a docker-archive into the cluster's containerd, where kubelet
// finds its images.
func Import(ctx context.Context, ctr string, dir layout.Dir, archive string) error {
	if out, err := images(ctx, ctr, dir, "import", archive); err != nil {
		return fmt.Errorf("importing %s into the cluster's containerd: %w: %s", archive, err, out)
	}
	return nil
}

// Tag gives an image of the cluster's containerd another name as well.
func Tag(ctx context.Context, ctr string, dir layout.Dir, image, name string) error {
	if out, err := images(ctx, ctr, dir, "tag", "--force", image, name); err != nil {
		return fmt.Errorf("giving the image %s the name %s: %w: %s", image, name, err, out)
	}
	return nil
}

// images runs a command of ctr on the images that kubelet finds.
func images(ctx context.Context, ctr string, dir layout.Dir, args ...string) (string, error) {
	args = append([]string{"--address", dir.ContainerdSocket(), "--namespace", "k8s.io", "images"}, args...)
	out, err := exec.CommandContext(ctx, ctr, args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// report writes the start's progress.
func (s *Supervisor) report(format string, args ...any) {
	fmt.Fprintf(s.progress, "%5.1fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

func (s *Supervisor) info(snapshotter string) Info {
	dir := s.spec.Dir
	info := Info{
		Dir:              dir,
		Kubeconfig:       dir.Kubeconfig(),
		Server:           server(s.spec),
		NodeName:         layout.NodeName,
		NodeIP:           layout.NodeIP,
		KubeletRoot:      dir.Kubelet(),
		CDIRoot:          dir.CDI(),
		DriverRoot:       s.spec.DriverRoot,
		ContainerdSocket: dir.ContainerdSocket(),
		Logs:             dir.Logs(),
		Snapshotter:      snapshotter,
		CgroupVersion:    1,
		BinPath:          filepath.Dir(s.spec.Binaries["kubectl"]) + ":" + filepath.Dir(s.spec.Binaries["helm"]) + ":" + filepath.Dir(s.spec.Binaries["ctr"]),
	}
	if s.spec.SimNode != "" {
		info.SimSocket = dir.SimSocket()
	}
	if sandbox.Unified() {
		info.CgroupVersion = 2
	}
	return info
}

// hasCapability reports whether this process has a capability, by its number.
func hasCapability(number int) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	// Without an answer it counts as missing, which is safe.
	_ = unix.Capget(&header, &data[0])
	return (uint64(data[1].Effective)<<32|uint64(data[0].Effective))&(1<<number) != 0
}
