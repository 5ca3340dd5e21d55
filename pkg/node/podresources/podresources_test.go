package podresources

import (
	"context"
	"net"
	"path/filepath"
	"reflect"
	"testing"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mica-gpu/mica/test/fixture"
)

// kubelet answers with what a test says.
type kubelet struct {
	podresourcesapi.UnimplementedPodResourcesListerServer
	pods []*podresourcesapi.PodResources
}

func (k *kubelet) List(context.Context, *podresourcesapi.ListPodResourcesRequest) (*podresourcesapi.ListPodResourcesResponse, error) {
	return &podresourcesapi.ListPodResourcesResponse{PodResources: k.pods}, nil
}

func TestUses(t *testing.T) {
	directory := t.TempDir()
	asked := New(directory)
	_, err := asked.Uses(t.Context())
	fixture.Sentence(t, err, "ask kubelet at "+filepath.Join(directory, "kubelet.sock")+" which containers have devices of device plugins", "no such file or directory")

	listener, err := net.Listen("unix", filepath.Join(directory, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server, node := grpc.NewServer(), &kubelet{}
	podresourcesapi.RegisterPodResourcesListerServer(server, node)
	go func() { _ = server.Serve(listener) }() // ends with Stop
	t.Cleanup(server.Stop)

	_, err = asked.Uses(t.Context())
	fixture.Sentence(t, err, "it lists no pod, not even this plugin's")
	node.pods = []*podresourcesapi.PodResources{
		{Namespace: "mica", Name: "plugin", Containers: []*podresourcesapi.ContainerResources{{Name: "plugin"}}},
		{Namespace: "train", Name: "worker", Containers: []*podresourcesapi.ContainerResources{
			{Name: "sidecar"},
			{Name: "main", Devices: []*podresourcesapi.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-1", "GPU-2"}}}},
		}},
	}
	worker := types.NamespacedName{Namespace: "train", Name: "worker"}
	want := []Use{{worker, "nvidia.com/gpu", "GPU-1"}, {worker, "nvidia.com/gpu", "GPU-2"}}
	if got, err := asked.Uses(t.Context()); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestDirectory(t *testing.T) {
	if got := Directory("/var/lib/kubelet/plugins/"); got != "/var/lib/kubelet/pod-resources" {
		t.Errorf("got %s", got)
	}
}
