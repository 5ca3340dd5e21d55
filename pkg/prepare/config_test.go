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
		"another kind for nobody here":       configured(object("MigDeviceConfig", `,"sharing":{"strategy":"MPS"}`)),
		"a third kind for nobody here":       configured(object("VfioDeviceConfig", `,"iommu":{"backendPolicy":"PreferIommuFD","enableAPIDevice":true}`)),
		"another kind for another request":   configured(object("MigDeviceConfig", ""), "elsewhere"),
		"another driver's":                   foreign,
		"nothing opaque":                     {},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := NewPlan(twoRequests(config), offer()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestConfigsThatAreRefused(t *testing.T) {
	class := configured(object("GpuConfig", `,"sharing":{"strategy":"MPS"}`))
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
		"MPS": {
			configured(object("GpuConfig", `,"sharing":{"strategy":"MPS"}`), "a"),
			[]string{`sharing.strategy is "MPS"`, "a whole GPU supports only TimeSlicing", "remove the field sharing"},
		},
		"MPS of a class": {class, []string{"(FromClass, all requests"}},
		"no strategy": {
			configured(object("GpuConfig", `,"sharing":{}`)),
			[]string{`sharing.strategy is ""`},
		},
		"MPS settings with time-slicing": {
			configured(object("GpuConfig", `,"sharing":{"strategy":"TimeSlicing","mpsConfig":{"multiUser":true}}`)),
			[]string{"sharing.mpsConfig is set although sharing.strategy is TimeSlicing", "remove it"},
		},
		"an interval": {
			configured(object("GpuConfig", `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`)),
			[]string{`sharing.timeSlicingConfig.interval is "Long"`, "supports only Default", "remove the field"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewPlan(twoRequests(tc.config), offer())
			fixture.Sentence(t, err, append(tc.want, "claim default/c, config[0] (")...)
		})
	}
}

func TestTheConfigAtFaultIsNumbered(t *testing.T) {
	good := configured(object("GpuConfig", ""))
	_, err := NewPlan(twoRequests(good, good, configured(object("Gpu", ""))), offer())
	fixture.Sentence(t, err, "claim default/c, config[2] (")
}
