//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A device plugin on the node has its GPUs: Mica's devices go, and return when it has
// gone. The test changes what the node offers, so it runs alone.
func TestADevicePluginTakesTheNode(t *testing.T) {
	s := newScenario(t, 1)
	setCapacity := func(ctx context.Context, gpus any) error {
		// kubelet takes over into allocatable what it finds in capacity.
		patch, err := mergePatch(fields{"status": fields{"capacity": fields{"nvidia.com/gpu": gpus}, "allocatable": fields{"nvidia.com/gpu": gpus}}})
		if err != nil {
			return err
		}
		_, err = s.client.CoreV1().Nodes().Patch(ctx, s.node, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), retryTimeout)
		defer cancel()
		must(t, errors.Join(setCapacity(ctx, nil), until(ctx, s.expectDevicesOfTheStart)), "take the device plugin's GPUs from the node")
	})
	must(t, setCapacity(t.Context(), "8"), "give the node GPUs of a device plugin")
	eventually(t, startTimeout, "no device is published", func(ctx context.Context) error {
		published, err := s.publishedDevices(ctx)
		if err == nil && len(published[s.node]) > 0 {
			err = fmt.Errorf("published are %v", deviceNames(published[s.node]))
		}
		return err
	})
	s.waitForNodeEvent("DevicePluginOwnsGPUs", "nvidia.com/gpu: 8")
	must(t, setCapacity(t.Context(), nil), "take the device plugin's GPUs from the node")
	eventually(t, startTimeout, "the devices are back", s.expectDevicesOfTheStart)
	s.createTemplate("one", s.claimFor(1))
	s.createPod(s.podFromTemplate("pod", "one"))
	s.expectOwnDevices("pod")
}
