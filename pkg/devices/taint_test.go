package devices

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
)

func TestTaintRulesTaintTheDevicesThatTheySelect(t *testing.T) {
	slice := func(driver, pool string, devices ...string) *resourceapi.ResourceSlice {
		s := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: driver, Pool: resourceapi.ResourcePool{Name: pool}}}
		for _, name := range devices {
			s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: name})
		}
		return s
	}
	text := func(s string) *string { return &s }
	rule := func(selector *resourceapi.DeviceTaintSelector, key string) resourceapi.DeviceTaintRule {
		return resourceapi.DeviceTaintRule{Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: selector, Taint: resourceapi.DeviceTaint{Key: key, Effect: resourceapi.DeviceTaintEffectNoSchedule},
		}}
	}
	slices := []*resourceapi.ResourceSlice{slice("gpu", "a", "d0", "d1"), slice("gpu", "b", "d0"), slice("net", "a", "d0")}
	tainted := WithTaintRules(slices, []resourceapi.DeviceTaintRule{
		rule(nil, "nothing"),
		rule(&resourceapi.DeviceTaintSelector{Driver: text("gpu"), Pool: text("a"), Device: text("d1")}, "one"),
		rule(&resourceapi.DeviceTaintSelector{Driver: text("gpu")}, "all-gpus"),
	})
	for i, want := range []map[string]string{{"d0": "all-gpus", "d1": "one,all-gpus"}, {"d0": "all-gpus"}, {"d0": ""}} {
		for _, device := range tainted[i].Spec.Devices {
			keys := ""
			for _, taint := range device.Taints {
				if keys != "" {
					keys += ","
				}
				keys += taint.Key
			}
			if keys != want[device.Name] {
				t.Errorf("device %s of %s/%s has the taints %q, want %q", device.Name, tainted[i].Spec.Driver, tainted[i].Spec.Pool.Name, keys, want[device.Name])
			}
		}
	}
	if tainted[2] != slices[2] {
		t.Error("a slice that no rule selects is copied")
	}
	if len(slices[0].Spec.Devices[0].Taints) != 0 {
		t.Error("a slice of the cache is changed")
	}
}

func TestDevicesRepelWhoDoesNotTolerateTheirTaints(t *testing.T) {
	taint := func(key string, effect resourceapi.DeviceTaintEffect) resourceapi.DeviceTaint {
		return resourceapi.DeviceTaint{Key: key, Effect: effect}
	}
	d := &Device{Device: &resourceapi.Device{Taints: []resourceapi.DeviceTaint{
		taint("told", resourceapi.DeviceTaintEffectNone), taint("ill", resourceapi.DeviceTaintEffectNoSchedule), taint("dead", resourceapi.DeviceTaintEffectNoExecute),
	}}}
	var tolerations []resourceapi.DeviceToleration
	for _, want := range []string{"ill", "dead", ""} {
		got := ""
		if repels := d.Repels(tolerations); repels != nil {
			got = repels.Key
		}
		if got != want {
			t.Errorf("who tolerates %v is repelled by %q, want %q", tolerations, got, want)
		}
		tolerations = append(tolerations, resourceapi.DeviceToleration{Key: want, Operator: resourceapi.DeviceTolerationOpExists})
	}
}
