package prepare

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/mica-gpu/mica/test/fixture"
)

func configured(parameters string, requests ...string) resourceapi.DeviceAllocationConfiguration {
	return resourceapi.DeviceAllocationConfiguration{
		Source:   resourceapi.AllocationConfigSourceClaim,
		Requests: requests,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: fixture.Driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)},
		}},
	}
}

func object(kind, rest string) string {
	return fmt.Sprintf(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":%q%s}`, kind, rest)
}

// mpsObject is a GpuConfig that makes processes clients of MPS.
func mpsObject(settings string) string {
	return object("GpuConfig", `,"sharing":{"strategy":"MPS","mpsConfig":{`+settings+`}}`)
}

// twoRequests has request a, and request b with the alternative big.
func twoRequests(configs ...resourceapi.DeviceAllocationConfiguration) *resourceapi.ResourceClaim {
	claim := fixture.Claim("c", fixture.Result("a", "gpu-0"), fixture.Result("b/big", "gpu-1"))
	claim.Status.Allocation.Devices.Config = configs
	return claim
}

func TestConfigsThatAreAccepted(t *testing.T) {
	foreign := configured(`"nonsense"`)
	foreign.Opaque.Driver = "nic.example.com"
	for name, config := range map[string]resourceapi.DeviceAllocationConfiguration{
		"empty":                              configured(object("GpuConfig", "")),
		"for a request":                      configured(object("GpuConfig", ""), "a"),
		"for an alternative":                 configured(object("GpuConfig", ""), "b/big"),
		"time-slicing":                       configured(object("GpuConfig", `,"sharing":{"strategy":"TimeSlicing"}`)),
		"time-slicing, empty settings":       configured(object("GpuConfig", `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{}}`)),
		"time-slicing, the default interval": configured(object("GpuConfig", `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Default"}}`)),
		"another kind that fits no device":   configured(object("MigDeviceConfig", `,"sharing":{"strategy":"MPS"}`)),
		"a third kind that fits no device":   configured(object("VfioDeviceConfig", `,"iommu":{"backendPolicy":"PreferIommuFD","enableAPIDevice":true}`)),
		"another kind for another request":   configured(object("MigDeviceConfig", ""), "elsewhere"),
		"another driver's":                   foreign,
		"nothing opaque":                     {},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := assign(twoRequests(config), pool()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestConfigsThatAreRefused(t *testing.T) {
	class := configured(object("GpuConfig", `,"sharing":{"strategy":"Fair"}`))
	class.Source = resourceapi.AllocationConfigSourceClass
	for name, tc := range map[string]struct {
		config resourceapi.DeviceAllocationConfiguration
		want   []string
	}{
		"an unknown field": {
			configured(object("GpuConfig", `,"shring":{}`), "a"),
			[]string{`(FromClaim, requests ["a"])`, "GpuConfig has a mistake", `unknown field "shring"`, "correct or remove the field"},
		},
		"an unknown field deep inside": {
			configured(object("GpuConfig", `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"intervall":"Default"}}`)),
			[]string{`(FromClaim, all requests ["a" "b/big"])`, `unknown field "sharing.timeSlicingConfig.intervall"`},
		},
		"a field in the wrong case": {
			configured(object("GpuConfig", `,"Sharing":{}`)),
			[]string{`unknown field "Sharing"`},
		},
		"a field twice": {
			configured(object("GpuConfig", `,"sharing":{"strategy":"TimeSlicing"},"sharing":{"strategy":"TimeSlicing"}`)),
			[]string{`duplicate field "sharing"`},
		},
		"a field of the wrong type": {
			configured(object("GpuConfig", `,"sharing":"TimeSlicing"`)),
			[]string{"GpuConfig does not decode", "sharing"},
		},
		"another version": {
			configured(`{"apiVersion":"resource.nvidia.com/v1","kind":"GpuConfig"}`),
			[]string{`apiVersion is "resource.nvidia.com/v1"`, "this driver understands resource.nvidia.com/v1beta1", "change the manifest or the driver's version"},
		},
		"no version": {
			configured(`{"kind":"GpuConfig"}`),
			[]string{`apiVersion is ""`},
		},
		"an unknown kind": {
			configured(object("GpuConfigs", "")),
			[]string{`kind is "GpuConfigs"`, "GpuConfig, MigDeviceConfig and VfioDeviceConfig"},
		},
		"a list":  {configured(`[]`), []string{"opaque parameters are not a Kubernetes object"}},
		"a word":  {configured(`"GpuConfig"`), []string{"opaque parameters are not a Kubernetes object"}},
		"half":    {configured(`{"apiVersion":`), []string{"opaque parameters are not a Kubernetes object"}},
		"nothing": {configured(``), []string{"opaque parameters are not a Kubernetes object"}},
		"null":    {configured(`null`), []string{`apiVersion is ""`}},
		"another kind for a request": {
			configured(object("MigDeviceConfig", ""), "a"),
			[]string{"config[0] (FromClaim) is a MigDeviceConfig", `request "a" was given the device gpu-0 of type gpu`, "use the kind for that type"},
		},
		"another kind for a request with alternatives": {
			configured(object("VfioDeviceConfig", ""), "b"),
			[]string{"is a VfioDeviceConfig", `request "b/big" was given the device gpu-1`},
		},
		"an unknown strategy": {
			configured(object("GpuConfig", `,"sharing":{"strategy":"Fair"}`), "a"),
			[]string{`sharing.strategy is "Fair"`, "choose TimeSlicing or MPS"},
		},
		"a mistake of a class": {class, []string{"(FromClass, all requests"}},
		"no strategy": {
			configured(object("GpuConfig", `,"sharing":{}`)),
			[]string{`sharing.strategy is ""`},
		},
		"MPS settings with time-slicing": {
			configured(object("GpuConfig", `,"sharing":{"strategy":"TimeSlicing","mpsConfig":{"multiUser":true}}`)),
			[]string{"sharing.mpsConfig is set although sharing.strategy is TimeSlicing", "remove it"},
		},
		"time-slice settings with MPS": {
			configured(object("GpuConfig", `,"sharing":{"strategy":"MPS","timeSlicingConfig":{}}`)),
			[]string{"sharing.timeSlicingConfig is set although sharing.strategy is MPS", "remove it"},
		},
		"an unknown interval": {
			configured(object("GpuConfig", `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Eternal"}}`)),
			[]string{`sharing.timeSlicingConfig.interval is "Eternal"`, `choose one of ["Default" "Short" "Medium" "Long"]`},
		},
		"too many multiprocessors": {
			configured(mpsObject(`"defaultActiveThreadPercentage":101`)),
			[]string{"sharing.mpsConfig.defaultActiveThreadPercentage is 101", "choose 0, which is no limit, to 100"},
		},
		"less than no multiprocessors": {
			configured(mpsObject(`"defaultActiveThreadPercentage":-1`)),
			[]string{"defaultActiveThreadPercentage is -1"},
		},
		"no quantity": {
			configured(mpsObject(`"defaultPinnedDeviceMemoryLimit":"much"`)),
			[]string{"GpuConfig does not decode", "quantities must match"},
		},
		"too little memory": {
			configured(mpsObject(`"defaultPinnedDeviceMemoryLimit":"1023Ki"`)),
			[]string{"sharing.mpsConfig.defaultPinnedDeviceMemoryLimit is 1023Ki", "choose at least 1Mi"},
		},
		"too little memory of one device": {
			configured(mpsObject(`"defaultPerDevicePinnedMemoryLimit":{"0":"1Gi","1":"-1Gi"}`)),
			[]string{"sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[1] is -1Gi", "choose at least 1Mi"},
		},
		"a device too many": {
			configured(mpsObject(`"defaultPerDevicePinnedMemoryLimit":{"2":"1Gi"}`)),
			[]string{`defaultPerDevicePinnedMemoryLimit has the key "2"`, "the configuration is for 2 devices: use a key of 0 to 1"},
		},
		"an unknown device": {
			configured(mpsObject(`"defaultPerDevicePinnedMemoryLimit":{"GPU-1":"1Gi"}`), "a"),
			[]string{`defaultPerDevicePinnedMemoryLimit has the key "GPU-1"`, "the configuration is for one device: use the key 0, or the UUID of a device that exists already"},
		},
		"a device twice": {
			configured(mpsObject(`"defaultPerDevicePinnedMemoryLimit":{"0":"1Gi","GPU-0":"1Gi"}`)),
			[]string{`defaultPerDevicePinnedMemoryLimit has two limits for gpu-0, "0" and "GPU-0"`, "remove one"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := assign(twoRequests(tc.config), pool())
			fixture.Sentence(t, err, append(tc.want, "config[0] (")...)
		})
	}
}

func TestTheConfigAtFaultIsNumbered(t *testing.T) {
	good := configured(object("GpuConfig", ""))
	_, err := assign(twoRequests(good, good, configured(object("Gpu", ""))), pool())
	fixture.Sentence(t, err, "config[2] (")
}
