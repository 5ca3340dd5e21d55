//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	devicepluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// A device plugin has the node's GPUs, so Mica offers none. The device plugin is removed, and a pod runs on with
// a GPU of it: Mica offers the node's other GPUs, and that one once the pod has gone. The test changes what the node offers, so it runs alone. Afterwards the
// node's status has nvidia.com/gpu: 0. kubelet never removes a resource from it, and the scheduler, kubelet
// and Mica take 0 for a node without a device plugin.
func TestAGPUOfARemovedDevicePluginIsLeftOut(t *testing.T) {
	m := under.onNode(t)
	s := newScenario(t, len(under.devices))
	plugin := s.startDevicePlugin(m)
	eventually(t, retryTimeout, "the node's GPUs are the device plugin's", func(ctx context.Context) error {
		published, err := s.publishedDevices(ctx)
		if err == nil && len(published[s.node]) > 0 {
			err = fmt.Errorf("published are %v", deviceNames(published[s.node]))
		}
		return errors.Join(err, s.expectDevicePluginHas(ctx, len(s.devices)))
	})
	s.waitForNodeEvent("DevicePluginOwnsGPUs", fmt.Sprintf("nvidia.com/gpu: %d", len(s.devices)))

	pod := s.plainPod("old")
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{wholeResource: quantityOf("1")}
	s.createPod(pod)
	before := s.waitRunning("old")
	if status := before.Status.ExtendedResourceClaimStatus; status != nil {
		t.Fatalf("the pod has claim %s, want a device of the device plugin", status.ResourceClaimName)
	}
	held := plugin.given(t)

	leaving, cancel := context.WithTimeout(t.Context(), retryTimeout)
	defer cancel()
	must(t, plugin.leave(leaving), "remove the device plugin")
	s.waitForNodeEvent("GPUsInUse", fmt.Sprintf("%s by pod %s/old from a device plugin", held.name, s.namespace))
	eventually(t, retryTimeout, "all GPUs but "+held.name+" are published", func(ctx context.Context) error {
		return s.expectPublishedBut(ctx, held)
	})
	if now := s.waitRunning("old"); containerRun(now) != containerRun(before) {
		t.Errorf("the pod was disturbed: its container was %s, is %s", containerRun(before), containerRun(now))
	}

	s.deletePod("old")
	eventually(t, retryTimeout, "the devices are back", s.expectDevicesOfTheStart)
	s.createTemplate("one", s.claimFor(1, s.of(held)))
	s.createPod(s.podFromTemplate("new", "one"))
	s.expectOwnDevices("new")
}

// expectPublishedBut wants the devices of the start, without those of one GPU.
func (in *installation) expectPublishedBut(ctx context.Context, held device) error {
	published, err := in.publishedDevices(ctx)
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(in.published(), func(d device) bool { return d.minor == held.minor })
	got, want := deviceNames(published[in.node]), deviceNames(others)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("published are %v, want %v", got, want)
	}
	return nil
}

// expectDevicePluginHas wants the node's status to have so many GPUs of a device plugin.
func (in *installation) expectDevicePluginHas(ctx context.Context, gpus int) error {
	node, err := in.client.CoreV1().Nodes().Get(ctx, in.node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	capacity, allocatable := node.Status.Capacity[wholeResource], node.Status.Allocatable[wholeResource]
	if capacity.Value() != int64(gpus) || allocatable.Value() != int64(gpus) {
		return fmt.Errorf("the node has %s of %s, %s of them allocatable, want %d", capacity.String(), wholeResource, allocatable.String(), gpus)
	}
	return nil
}

// devicePlugin stands in for NVIDIA's: it gives out the node's GPUs by their UUIDs. Containers see nothing of them.
type devicePlugin struct {
	devicepluginapi.UnimplementedDevicePluginServer
	*installation
	socket string
	server *grpc.Server
	// leaving ends what it offers.
	leaving chan struct{}
	once    sync.Once

	mu  sync.Mutex
	ids []string // given out
}

// startDevicePlugin registers the device plugin at kubelet, until the test ends.
func (s *scenario) startDevicePlugin(m machine) *devicePlugin {
	s.Helper()
	directory := m.devicePluginDirectory(s)
	p := &devicePlugin{installation: s.installation, socket: filepath.Join(directory, "mica-e2e.sock"), server: grpc.NewServer(), leaving: make(chan struct{})}
	devicepluginapi.RegisterDevicePluginServer(p.server, p)
	listener, err := net.Listen("unix", p.socket)
	must(s, err, "listen as a device plugin")
	go func() { _ = p.server.Serve(listener) }() // ends with Stop
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*retryTimeout)
		defer cancel()
		must(s, errors.Join(p.leave(ctx), until(ctx, s.deletePods), until(ctx, s.expectDevicesOfTheStart)), "leave the node as it was")
	})

	kubelet, err := grpc.NewClient("unix:"+filepath.Join(directory, filepath.Base(devicepluginapi.KubeletSocket)), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(s, err, "connect to kubelet")
	s.Cleanup(func() { _ = kubelet.Close() })
	ctx, cancel := context.WithTimeout(s.Context(), startTimeout)
	defer cancel()
	_, err = devicepluginapi.NewRegistrationClient(kubelet).Register(ctx, &devicepluginapi.RegisterRequest{
		Version: devicepluginapi.Version, Endpoint: filepath.Base(p.socket), ResourceName: wholeResource,
	})
	must(s, err, "register the device plugin at kubelet")
	return p
}

// devicePluginDirectory is where device plugins register. kubelet has it at a fixed path, whatever its root directory is.
func (m machine) devicePluginDirectory(t testing.TB) string {
	t.Helper()
	return filepath.Join(m.kubeletFiles(t), devicepluginapi.DevicePluginPath)
}

// leave takes the device plugin and its socket away, once it has taken back its GPUs. kubelet keeps the capacity
// of one that only ends for five minutes (pkg/kubelet/cm/devicemanager/types.go, endpointStopGracePeriod).
func (p *devicePlugin) leave(ctx context.Context) error {
	p.once.Do(func() { close(p.leaving) })
	err := until(ctx, func(ctx context.Context) error { return p.expectDevicePluginHas(ctx, 0) })
	p.server.Stop()
	switch _, found := os.Lstat(p.socket); {
	case found == nil:
		err = errors.Join(err, fmt.Errorf("the device plugin's socket %s is still there", p.socket))
	case !errors.Is(found, fs.ErrNotExist):
		err = errors.Join(err, found)
	}
	return err
}

// given is the one GPU that kubelet has given to a container.
func (p *devicePlugin) given(t testing.TB) device {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ids) == 1 {
		if at := slices.IndexFunc(p.devices, func(d device) bool { return d.uuid == p.ids[0] }); at >= 0 {
			return p.devices[at]
		}
	}
	t.Fatalf("kubelet has given out %v, want one of %v", p.ids, deviceNames(p.devices))
	return device{}
}

func (p *devicePlugin) GetDevicePluginOptions(context.Context, *devicepluginapi.Empty) (*devicepluginapi.DevicePluginOptions, error) {
	return &devicepluginapi.DevicePluginOptions{}, nil
}

func (p *devicePlugin) ListAndWatch(_ *devicepluginapi.Empty, stream grpc.ServerStreamingServer[devicepluginapi.ListAndWatchResponse]) error {
	all := &devicepluginapi.ListAndWatchResponse{}
	for _, d := range p.devices {
		all.Devices = append(all.Devices, &devicepluginapi.Device{ID: d.uuid, Health: devicepluginapi.Healthy})
	}
	if err := stream.Send(all); err != nil {
		return err
	}
	select {
	case <-p.leaving:
	case <-stream.Context().Done():
		return nil
	}
	if err := stream.Send(&devicepluginapi.ListAndWatchResponse{}); err != nil {
		return err
	}
	<-stream.Context().Done() // by Stop
	return nil
}

func (p *devicePlugin) Allocate(_ context.Context, request *devicepluginapi.AllocateRequest) (*devicepluginapi.AllocateResponse, error) {
	answer := &devicepluginapi.AllocateResponse{}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, container := range request.GetContainerRequests() {
		p.ids = append(p.ids, container.GetDevicesIds()...)
		answer.ContainerResponses = append(answer.ContainerResponses, &devicepluginapi.ContainerAllocateResponse{})
	}
	return answer, nil
}
