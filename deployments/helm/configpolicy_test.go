package helm_test

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/mica-gpu/mica/test/admission"
)

// These tests compile the chart's policy of configurations and evaluate it with what the
// API server does that with.

func TestConfigPolicyDecides(t *testing.T) {
	policy := configPolicy(t)
	for name, test := range map[string]struct {
		parameters string
		want       string // part of the message; "" is accepted
	}{
		"whole GPUs":                          {gpuConfig(``), ""},
		"nothing said of sharing":             {gpuConfig(`"sharing": null`), ""},
		"time-slicing":                        {gpuConfig(`"sharing": {"strategy": "TimeSlicing"}`), ""},
		"an interval":                         {gpuConfig(`"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}`), ""},
		"no interval":                         {gpuConfig(`"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": null}}`), ""},
		"MPS":                                 {gpuConfig(`"sharing": {"strategy": "MPS", "timeSlicingConfig": null}`), ""},
		"MPS with everything":                 {gpuConfig(`"sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi", "defaultPerDevicePinnedMemoryLimit": {"0": "1Mi", "GPU-1": 2097152}, "multiUser": true}}`), ""},
		"MPS with nothing":                    {gpuConfig(`"sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": null, "defaultPinnedDeviceMemoryLimit": null, "defaultPerDevicePinnedMemoryLimit": null, "multiUser": null}}`), ""},
		"no limit and all of it":              {gpuConfig(`"sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 0}}`), ""},
		"partitions":                          {migConfig(`"sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 100}}`), ""},
		"passthrough":                         {`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "VfioDeviceConfig", "iommu": {"backendPolicy": "LegacyOnly", "enableAPIDevice": true}}`, ""},
		"no version":                          {`{"kind": "GpuConfig"}`, `has the apiVersion "": the driver understands resource.nvidia.com/v1beta1`},
		"an old version":                      {`{"apiVersion": "resource.nvidia.com/v1alpha1", "kind": "GpuConfig"}`, `has the apiVersion "resource.nvidia.com/v1alpha1"`},
		"no kind":                             {`{"apiVersion": "resource.nvidia.com/v1beta1"}`, `has the kind "": the driver understands GpuConfig, MigDeviceConfig and VfioDeviceConfig`},
		"another kind":                        {`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GPUConfig"}`, `has the kind "GPUConfig"`},
		"a kind that is none":                 {`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": {"a": 1}}`, `has the kind`},
		"an unknown field":                    {gpuConfig(`"Sharing": {}`), "has the field Sharing, which its kind does not have"},
		"metadata":                            {migConfig(`"metadata": {"name": "a"}`), "has the field metadata"},
		"passthrough of a GPU":                {gpuConfig(`"iommu": {}`), "has the field iommu"},
		"an unknown field of passthrough":     {`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "VfioDeviceConfig", "iommu": {"policy": "LegacyOnly"}}`, "has the field iommu.policy"},
		"an unknown field of sharing":         {gpuConfig(`"sharing": {"strategy": "MPS", "mps": {}}`), "has the field sharing.mps,"},
		"the time-slice of a partition":       {migConfig(`"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {}}`), "has the field sharing.timeSlicingConfig,"},
		"an unknown field of time-slicing":    {gpuConfig(`"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"replicas": 2}}`), "has the field sharing.timeSlicingConfig.replicas"},
		"an unknown field of MPS":             {gpuConfig(`"sharing": {"strategy": "MPS", "mpsConfig": {"activeThreadPercentage": 2}}`), "has the field sharing.mpsConfig.activeThreadPercentage"},
		"sharing is no object":                {gpuConfig(`"sharing": "MPS"`), "has a sharing that is no object"},
		"the settings of MPS are no object":   {gpuConfig(`"sharing": {"strategy": "MPS", "mpsConfig": [1]}`), "has a sharing.mpsConfig that is no object"},
		"the time-slice is no object":         {gpuConfig(`"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": "Short"}`), "has a sharing.timeSlicingConfig that is no object"},
		"the limits of devices are no object": {gpuConfig(`"sharing": {"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": "1Gi"}}`), "has a sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit that is no object"},
		"passthrough is no object":            {`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "VfioDeviceConfig", "iommu": true}`, "has a iommu that is no object"},
		"no strategy":                         {gpuConfig(`"sharing": {}`), `sharing.strategy of the configuration for gpu.nvidia.com is "": choose TimeSlicing or MPS`},
		"an unknown strategy":                 {migConfig(`"sharing": {"strategy": "Mps"}`), `is "Mps": choose TimeSlicing or MPS`},
		"a strategy that is a number":         {migConfig(`"sharing": {"strategy": 1}`), `is "1": choose TimeSlicing or MPS`},
		"time-slicing with settings of MPS":   {gpuConfig(`"sharing": {"strategy": "TimeSlicing", "mpsConfig": {}}`), "sharing.mpsConfig of the configuration for gpu.nvidia.com is set although sharing.strategy is TimeSlicing: remove it"},
		"MPS with a time-slice":               {gpuConfig(`"sharing": {"strategy": "MPS", "timeSlicingConfig": {}}`), "sharing.timeSlicingConfig of the configuration for gpu.nvidia.com is set although sharing.strategy is MPS: remove it"},
		"an unknown interval":                 {gpuConfig(`"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "long"}}`), `interval of the configuration for gpu.nvidia.com is "long": choose Default, Short, Medium or Long`},
		"an interval that is a number":        {gpuConfig(`"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": 2}}`), `is "2": choose Default`},
		"a percentage that is too large":      {gpuConfig(`"sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 101}}`), "defaultActiveThreadPercentage of the configuration for gpu.nvidia.com is 101: choose a whole number from 0"},
		"a percentage that is too small":      {gpuConfig(`"sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": -1}}`), "is -1: choose a whole number"},
		"a percentage that is not whole":      {gpuConfig(`"sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 0.5}}`), "is 0.5"},
		"a percentage that is text":           {gpuConfig(`"sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": "50"}}`), "is 50: choose a whole number"},
		"users that are no truth":             {gpuConfig(`"sharing": {"strategy": "MPS", "mpsConfig": {"multiUser": "yes"}}`), "multiUser of the configuration for gpu.nvidia.com is yes: choose true or false"},
		"a limit that is no quantity":         {migConfig(`"sharing": {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "10GB"}}`), "defaultPinnedDeviceMemoryLimit of the configuration for gpu.nvidia.com is 10GB: choose a quantity of at least 1Mi"},
		"a limit that is too small":           {gpuConfig(`"sharing": {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "10"}}`), "is 10: choose a quantity"},
		"a limit in bytes":                    {gpuConfig(`"sharing": {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": 1048576}}`), ""},
		"a limit in too few bytes":            {gpuConfig(`"sharing": {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": 1048575}}`), "is 1048575: choose"},
		"a limit that is an object":           {gpuConfig(`"sharing": {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": {}}}`), "defaultPinnedDeviceMemoryLimit of the configuration"},
		"a limit of one device that is none":  {gpuConfig(`"sharing": {"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"0": "1Gi", "GPU-1": "much"}}}`), "defaultPerDevicePinnedMemoryLimit[GPU-1] is much in the configuration for gpu.nvidia.com: choose a quantity"},
		"a limit of one device that is empty": {gpuConfig(`"sharing": {"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"0": null}}}`), "defaultPerDevicePinnedMemoryLimit[0] is null"},
		"only the first of several is told":   {gpuConfig(`"sharing": {"strategy": "MPS", "a": 1, "b": 2}`), "has the field sharing."},
	} {
		t.Run(name, func(t *testing.T) {
			for kind, object := range configured(t, "gpu.nvidia.com", test.parameters) {
				expectMessage(t, policy, kind, object, test.want)
			}
		})
	}
}

func gpuConfig(fields string) string { return configOf("GpuConfig", fields) }
func migConfig(fields string) string { return configOf("MigDeviceConfig", fields) }

func configOf(kind, fields string) string {
	if fields != "" {
		fields = ", " + fields
	}
	return fmt.Sprintf(`{"apiVersion": "resource.nvidia.com/v1beta1", "kind": %q%s}`, kind, fields)
}

const wrong = `{"kind": "Wrong"}`

// Everything else in a cluster is not delayed, and what exists can be deleted.
func TestConfigPolicyLeavesTheRestAlone(t *testing.T) {
	policy := configPolicy(t)
	for kind, object := range configured(t, "gpu.nvidia.com", wrong) {
		for name, test := range map[string]struct {
			review admission.Review
			want   bool
		}{
			"another driver's configuration": {admission.Review{Object: configured(t, "nic.example.com", wrong)[kind]}, false},
			"no configuration":               {admission.Review{Object: configured(t, "", "")[kind]}, false},
			"nothing of the spec changes":    {admission.Review{Object: object, Old: object}, false},
			"the spec changes":               {admission.Review{Object: object, Old: configured(t, "", "")[kind]}, true},
		} {
			test.review.Kind = kind
			if matched, _ := policy.Review(t, test.review); matched != test.want {
				t.Errorf("a %s, %s: looked at %t, want %t", kind, name, matched, test.want)
			}
		}
	}
}

// configured are an object of each kind that can hold a configuration, beside that of
// another driver.
func configured(t *testing.T, driver, parameters string) map[string]runtime.Object {
	t.Helper()
	opaque := func(driver, parameters string) resourceapi.DeviceConfiguration {
		return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)},
		}}
	}
	var spec resourceapi.ResourceClaimSpec
	var class resourceapi.DeviceClassSpec
	if driver != "" {
		for _, c := range []resourceapi.DeviceConfiguration{opaque("other.example.com", `{"any": "thing"}`), opaque(driver, parameters)} {
			spec.Devices.Config = append(spec.Devices.Config, resourceapi.DeviceClaimConfiguration{DeviceConfiguration: c})
			class.Config = append(class.Config, resourceapi.DeviceClassConfiguration{DeviceConfiguration: c})
		}
	}
	return map[string]runtime.Object{
		"ResourceClaim":         &resourceapi.ResourceClaim{Spec: spec},
		"ResourceClaimTemplate": &resourceapi.ResourceClaimTemplate{Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec}},
		"DeviceClass":           &resourceapi.DeviceClass{Spec: class},
	}
}

// configPolicy is the policy as the chart renders it.
func configPolicy(t *testing.T) admission.Policy { return renderedPolicy(t, "deviceconfigs-") }

// renderedPolicy is the policy whose name has the prefix.
func renderedPolicy(t *testing.T, prefix string, args ...string) admission.Policy {
	t.Helper()
	return admission.Find(t, render(t, append([]string{"--namespace", "mica"}, args...)...), prefix)
}

// expectDecision expects the policy to refuse what it is asked with the words, or to accept it without any.
func expectDecision(t *testing.T, policy admission.Policy, review admission.Review, words string) {
	t.Helper()
	matched, messages := policy.Review(t, review)
	refused := strings.Join(messages, "\n")
	if !matched || words == "" && refused != "" || !strings.Contains(refused, words) {
		t.Errorf("looked at: %t, refused: %q, want %q", matched, refused, words)
	}
}

// The largest configurations that the API allows are within what the API server spends.
func TestConfigPolicyIsWithinTheBudget(t *testing.T) {
	policy := configPolicy(t)
	var limits []string
	for i := range 350 {
		limits = append(limits, fmt.Sprintf(`"GPU-%d": "10Gi"`, i))
	}
	parameters := gpuConfig(`"sharing": {"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {` + strings.Join(limits, ",") + `}}}`)
	if len(parameters) > resourceapi.OpaqueParametersMaxLength {
		t.Fatalf("%d bytes are more than the API allows", len(parameters))
	}
	claim := configured(t, "gpu.nvidia.com", parameters)["ResourceClaim"].(*resourceapi.ResourceClaim)
	for len(claim.Spec.Devices.Config) < resourceapi.DeviceConfigMaxSize {
		claim.Spec.Devices.Config = append(claim.Spec.Devices.Config, claim.Spec.Devices.Config[1])
	}
	if matched, messages := policy.Review(t, admission.Review{Kind: "ResourceClaim", Object: claim}); !matched || len(messages) > 0 {
		t.Errorf("looked at: %t, refused: %q", matched, messages)
	}
}
