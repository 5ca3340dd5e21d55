package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// A fault shows in kubelet's report, the slices, and Events on node and claim, and not on other GPUs.
func TestAFaultIsReportedEverywhere(t *testing.T) {
	one := fixture.Claim("one", fixture.Result("a", "gpu-3"))
	api, h := apiserver.New(one), newHardware(t)
	o := options(t, api, h)
	d, k, _ := serving(t, o)
	k.prepared(one)

	reports := make(chan kubeletplugin.DeviceHealthReport)
	fixture.Background(t.Context(), t, func(ctx context.Context) error { return d.WatchHealthStatus(ctx, reports) })
	expect := func(what string, as func(kubeletplugin.DeviceHealth) error) {
		t.Helper()
		fixture.Eventually(t, what, func() error {
			report := <-reports
			if len(report.Devices) < len(h.node.GPUs) {
				return fmt.Errorf("got %d devices", len(report.Devices))
			}
			for _, device := range report.Devices {
				if err := as(device); err != nil {
					return err
				}
			}
			return nil
		})
	}
	is := func(device kubeletplugin.DeviceHealth, status kubeletplugin.HealthStatus, message string) error {
		if device.Health != status || !strings.Contains(device.Message, message) {
			return fmt.Errorf("%s is %s: %q", device.DeviceName, device.Health, device.Message)
		}
		return nil
	}
	expect("all are well", func(device kubeletplugin.DeviceHealth) error {
		return is(device, kubeletplugin.HealthStatusHealthy, "")
	})
	must(t, h.machine.SetCondition(3, model.Condition{RecoveryAction: "gpu-reset"}))
	expect("GPU 3 is unwell", func(device kubeletplugin.DeviceHealth) error {
		must(t, h.machine.Inject(model.XID(3, 119))) // until a listener is there
		if device.DeviceName == "gpu-3" || strings.HasPrefix(device.DeviceName, "gpu-3-") {
			return is(device, kubeletplugin.HealthStatusUnhealthy, "reset it")
		}
		return is(device, kubeletplugin.HealthStatusHealthy, "")
	})
	fixture.Eventually(t, "the slices have the taint", func() error {
		for _, slice := range api.Slices(t) {
			for _, device := range slice.Spec.Devices {
				if device.Name == "gpu-3" && len(device.Taints) == 1 && device.Taints[0].TimeAdded != nil {
					return nil
				}
			}
		}
		return errors.New("no")
	})
	fixture.Eventually(t, "events on node and claim", func() error {
		list, err := api.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		told := map[string]bool{}
		for _, event := range list.Items {
			if event.Reason == ReasonFault && event.Type == corev1.EventTypeWarning {
				told[event.InvolvedObject.Kind+" "+event.InvolvedObject.Name] = true
			}
		}
		if !told["Node "+fixture.NodeName] || !told["ResourceClaim one"] {
			return fmt.Errorf("told are %v", told)
		}
		return nil
	})
}
