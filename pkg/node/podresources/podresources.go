// Package podresources asks kubelet which devices of device plugins containers have. It changes
// nothing, and does not know what the devices are.
package podresources

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/types"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Use is a device that a container has from a device plugin.
type Use struct {
	Pod types.NamespacedName
	// Resource is what the pod asked for, such as nvidia.com/gpu.
	Resource string
	// Device is the device plugin's ID, such as a GPU's UUID.
	Device string
}

const (
	// callTimeout bounds one question to kubelet.
	callTimeout = 5 * time.Second
	// maxAnswer is far above the size of an answer about 1,000 pods.
	maxAnswer = 16 << 20
)

// Kubelet is kubelet at its socket. Its clients need no permission at the API server.
type Kubelet struct{ socket string }

// Directory is where kubelet has the socket if its plugins are in that directory. Both are
// in kubelet's root directory.
func Directory(pluginsDir string) string {
	return filepath.Join(filepath.Dir(filepath.Clean(pluginsDir)), "pod-resources")
}

// New does not connect yet.
func New(directory string) Kubelet { return Kubelet{filepath.Join(directory, "kubelet.sock")} }

var errNoPods = errors.New("it lists no pod, not even this plugin's: it is starting")

// Uses are the devices of all containers that run or are about to. kubelet keeps them with the
// pod, in its checkpoint too, so they are listed after their device plugin has gone and after
// kubelet was restarted (pkg/kubelet/cm/devicemanager, UpdateAllocatedDevices).
func (k Kubelet) Uses(ctx context.Context) ([]Use, error) {
	uses, err := k.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask kubelet at %s which containers have devices of device plugins: %w", k.socket, err)
	}
	return uses, nil
}

func (k Kubelet) list(ctx context.Context) (uses []Use, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	connection, err := grpc.NewClient("unix:"+k.socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, connection.Close()) }()
	answer, err := podresourcesapi.NewPodResourcesListerClient(connection).List(ctx, &podresourcesapi.ListPodResourcesRequest{})
	if err != nil {
		return nil, err
	}
	if len(answer.GetPodResources()) == 0 {
		return nil, errNoPods
	}
	for _, pod := range answer.GetPodResources() {
		for _, container := range pod.GetContainers() {
			for _, devices := range container.GetDevices() {
				for _, id := range devices.GetDeviceIds() {
					uses = append(uses, Use{types.NamespacedName{Namespace: pod.GetNamespace(), Name: pod.GetName()}, devices.GetResourceName(), id})
				}
			}
		}
	}
	return uses, nil
}
