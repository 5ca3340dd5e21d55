package helm_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/test/admission"
	"github.com/mica-gpu/mica/test/manifest"
)

// pkg/node/prepare holds this policy to what nodes accept; here are its sentences.

// exactly is a request for one device of a class.
func exactly(name, class string) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}}
}

// firstOf is a request with the alternatives a0, a1 and so on.
func firstOf(name string, classes ...string) resourceapi.DeviceRequest {
	request := resourceapi.DeviceRequest{Name: name}
	for i, class := range classes {
		request.FirstAvailable = append(request.FirstAvailable, resourceapi.DeviceSubRequest{Name: fmt.Sprintf("a%d", i), DeviceClassName: class})
	}
	return request
}

func asAdmin(request resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	request.Exactly.AdminAccess = ptr.To(true)
	return request
}

// configFor is a configuration of the driver for some requests, or for all.
func configFor(parameters string, requests ...string) resourceapi.DeviceClaimConfiguration {
	return resourceapi.DeviceClaimConfiguration{Requests: requests, DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "gpu.nvidia.com", Parameters: runtime.RawExtension{Raw: []byte(parameters)}},
	}}
}

// asObjects are a claim and a template of it.
func asObjects(claim resourceapi.DeviceClaim) map[string]runtime.Object {
	spec := resourceapi.ResourceClaimSpec{Devices: claim}
	return map[string]runtime.Object{
		"ResourceClaim":         &resourceapi.ResourceClaim{Spec: spec},
		"ResourceClaimTemplate": &resourceapi.ResourceClaimTemplate{Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec}},
	}
}

const (
	byTurns = `"sharing": {"strategy": "TimeSlicing"}`
	byMPS   = `"sharing": {"strategy": "MPS"}`
)

func TestConfigFitPolicyDecides(t *testing.T) {
	type requests = []resourceapi.DeviceRequest
	type configs = []resourceapi.DeviceClaimConfiguration
	gpu, mig, slice, mps := exactly("gpu", "gpu.nvidia.com"), exactly("mig", "mig.nvidia.com"), exactly("slice", "timeslice.nvidia.com"), exactly("slice", "mig-mps.nvidia.com")
	other := exactly("nic", "nic.example.com")
	either := firstOf("any", "mig.nvidia.com", "gpu.nvidia.com")
	passthrough := `{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "VfioDeviceConfig"}`
	for name, test := range map[string]struct {
		requests requests
		configs  configs
		refused  string // part of the only message; "" is accepted
		warned   string
	}{
		"for its own request":                    {requests{gpu, mig}, configs{configFor(gpuConfig(byTurns), "gpu"), configFor(migConfig(byTurns), "mig")}, "", ""},
		"for all":                                {requests{gpu, mig}, configs{configFor(gpuConfig(byTurns)), configFor(migConfig(byTurns))}, "", ""},
		"for all by name":                        {requests{gpu, mig}, configs{configFor(gpuConfig(byTurns), "gpu", "mig")}, "", ""},
		"the other kind":                         {requests{gpu, mig}, configs{configFor(gpuConfig(""), "mig")}, `a configuration for gpu.nvidia.com names the request "mig", which asks for mig.nvidia.com: make it a MigDeviceConfig, or take the request out of its requests`, "no request of the claim asks for devices of the kind of its GpuConfig"},
		"the other kind beside another driver's": {requests{other, gpu}, configs{configFor(migConfig(""), "gpu")}, `names the request "gpu", which asks for gpu.nvidia.com: make it a GpuConfig`, ""},
		"passthrough":                            {requests{mig, gpu}, configs{configFor(passthrough, "gpu")}, `make it a GpuConfig`, "VfioDeviceConfig for gpu.nvidia.com, which changes nothing"},
		"for the only request":                   {requests{mig}, configs{configFor(gpuConfig(byTurns), "mig")}, "", "no request of the claim asks for devices of the kind of its GpuConfig for gpu.nvidia.com, which changes nothing: use GpuConfig for GPUs and their shares"},
		"for no request":                         {requests{mig}, configs{configFor(gpuConfig(byTurns))}, "", "which changes nothing"},
		"for an administrator's class":           {requests{other, gpu}, configs{configFor(migConfig(""), "nic")}, "", ""},
		"for one of two alternatives":            {requests{either, gpu}, configs{configFor(gpuConfig(""), "any")}, "", ""},
		"for the other alternative":              {requests{either, gpu}, configs{configFor(gpuConfig(""), "any/a0")}, "", "which changes nothing"},
		"for no alternative":                     {requests{firstOf("any", "mig.nvidia.com", "mig-mps.nvidia.com"), gpu}, configs{configFor(gpuConfig(""), "any")}, `names the request "any/a0", which asks for mig.nvidia.com`, "which changes nothing"},
		"for neither alternative, by two":        {requests{either, gpu}, configs{configFor(gpuConfig(""), "any/a0"), configFor(migConfig(""), "any/a1")}, `names the request "any/a0"`, "which changes nothing"},
		"shares of a share":                      {requests{slice}, configs{configFor(gpuConfig(byTurns))}, `sharing is set for the request "slice", which asks for shares, timeslice.nvidia.com: the node's GPUPolicy says`, ""},
		"shares of a share of a partition":       {requests{mps, gpu}, configs{configFor(migConfig(byMPS), "slice")}, `sharing is set for the request "slice", which asks for shares, mig-mps.nvidia.com`, ""},
		"a share without sharing":                {requests{slice}, configs{configFor(gpuConfig(`"sharing": null`)), configFor(gpuConfig(""))}, "", ""},
		"the last one counts":                    {requests{slice}, configs{configFor(gpuConfig(byTurns)), configFor(gpuConfig(""), "slice")}, "", ""},
		"the last one that fits counts":          {requests{slice, mig}, configs{configFor(gpuConfig(byTurns)), configFor(migConfig(""))}, `sharing is set for the request "slice"`, ""},
		"a share or a GPU":                       {requests{firstOf("any", "timeslice.nvidia.com", "gpu.nvidia.com")}, configs{configFor(gpuConfig(byTurns))}, "", ""},
		"MPS":                                    {requests{mig, gpu}, configs{configFor(gpuConfig(byMPS), "gpu")}, `sharing.strategy is MPS for the request "gpu", but this cluster runs no MPS: install the chart with mps.enabled=true, or choose TimeSlicing`, ""},
		"MPS of whoever only looks":              {requests{asAdmin(exactly("gpu", "gpu.nvidia.com"))}, configs{configFor(gpuConfig(byMPS))}, "", ""},
		"MPS of an administrator's class":        {requests{other}, configs{configFor(gpuConfig(byMPS))}, "", ""},
		"MPS, and turns after":                   {requests{gpu}, configs{configFor(gpuConfig(byMPS)), configFor(gpuConfig(byTurns), "gpu")}, "", ""},
		"sharing is no object":                   {requests{gpu}, configs{configFor(gpuConfig(`"sharing": "MPS"`))}, "", ""},
		"a strategy that is no text":             {requests{gpu}, configs{configFor(gpuConfig(`"sharing": {"strategy": {}}`))}, "", ""},
		"a kind that is no text":                 {requests{gpu}, configs{configFor(`{"kind": 5}`)}, "", "which changes nothing"},
		"a request of nothing":                   {requests{{Name: "empty"}, gpu}, configs{configFor(gpuConfig(byTurns))}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for kind, object := range asObjects(resourceapi.DeviceClaim{Requests: test.requests, Config: test.configs}) {
				expectMessage(t, configFitPolicy(t, "deviceconfigfit-"), kind, object, test.refused)
				expectMessage(t, configFitPolicy(t, "deviceconfiguse-"), kind, object, test.warned)
			}
		})
	}
}

// configFitPolicy is a policy of the chart with its defaults, compiled once.
func configFitPolicy(t *testing.T, prefix string) admission.Policy {
	t.Helper()
	if _, known := configFitPolicies[prefix]; !known {
		configFitPolicies[prefix] = renderedPolicy(t, prefix)
	}
	return configFitPolicies[prefix]
}

var configFitPolicies = map[string]admission.Policy{}

func expectMessage(t *testing.T, policy admission.Policy, kind string, object runtime.Object, want string) {
	t.Helper()
	matched, messages := policy.Review(t, admission.Review{Kind: kind, Object: object})
	switch {
	case !matched:
		t.Errorf("a %s is not looked at", kind)
	case want == "" && len(messages) > 0:
		t.Errorf("a %s is refused: %q", kind, messages)
	case want != "" && (len(messages) != 1 || !strings.Contains(messages[0], want)):
		t.Errorf("for a %s: got the messages %q, want one with %q", kind, messages, want)
	}
}

// Where the chart runs MPS, or has no classes, there is less to refuse.
func TestConfigFitPolicyFollowsTheValues(t *testing.T) {
	policy := renderedPolicy(t, "deviceconfigfit-", "--set", "mps.enabled=true")
	claim := resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{exactly("gpu", "gpu.nvidia.com")}, Config: []resourceapi.DeviceClaimConfiguration{configFor(gpuConfig(byMPS))}}
	expectMessage(t, policy, "ResourceClaim", asObjects(claim)["ResourceClaim"], "")
	for _, value := range []string{"deviceClass.create=false", "admissionPolicy.enabled=false"} {
		if rendered := render(t, "--namespace", "mica", "--set", value); strings.Contains(rendered, "deviceconfigfit-") {
			t.Errorf("there is a policy in spite of %s", value)
		}
	}
}

// Manifests of NVIDIA's patterns and our examples are neither refused nor warned of.
func TestConfigFitPolicyAcceptsManifests(t *testing.T) {
	files, err := filepath.Glob("../../test/e2e/testdata/nvidia-*.yaml")
	examples, walked := manifest.Files("../../examples")
	if err != nil || walked != nil || len(files) < 7 {
		t.Fatal(files, err, walked)
	}
	policies := []admission.Policy{renderedPolicy(t, "deviceconfigfit-", "--set", "mps.enabled=true"), configFitPolicy(t, "deviceconfiguse-")}
	configurations := 0
	for _, file := range append(files, examples...) {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := manifest.Read(content)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, object := range objects {
			kind := object.GetObjectKind().GroupVersionKind().Kind
			if kind != "ResourceClaim" && kind != "ResourceClaimTemplate" {
				continue
			}
			for _, policy := range policies {
				matched, messages := policy.Review(t, admission.Review{Kind: kind, Object: object})
				if len(messages) > 0 {
					t.Errorf("%s: %q", file, messages)
				}
				if matched {
					configurations++
				}
			}
		}
	}
	if configurations == 0 {
		t.Error("none of them has a configuration")
	}
}

// Everything else in a cluster is not delayed.
func TestConfigFitPolicyLeavesTheRestAlone(t *testing.T) {
	for _, prefix := range []string{"deviceconfigfit-", "deviceconfiguse-"} {
		policy := configFitPolicy(t, prefix)
		for _, driver := range []string{"nic.example.com", ""} {
			for kind, object := range configured(t, driver, wrong) {
				if kind == "DeviceClass" {
					continue
				}
				if matched, _ := policy.Review(t, admission.Review{Kind: kind, Object: object}); matched {
					t.Errorf("%s…: a %s with a configuration of %q is looked at", prefix, kind, driver)
				}
			}
		}
	}
}

// What the policy knows of a class is what the class selects.
func TestConfigFitPolicyKnowsTheChartsClasses(t *testing.T) {
	rendered := render(t, "--namespace", "mica", "--values", "testdata/everything.values.yaml", "--set", "admissionPolicy.enabled=true")
	want := map[string]string{}
	var shares []string
	for document := range strings.SplitSeq(rendered, "\n---\n") {
		var class resourceapi.DeviceClass
		if err := yaml.Unmarshal([]byte(document), &class); err != nil || class.Kind != "DeviceClass" {
			continue
		}
		match := regexp.MustCompile(`\.type == '([^']+)'`).FindStringSubmatch(class.Spec.Selectors[0].CEL.Expression)
		if match == nil {
			t.Fatalf("class %s does not select by type", class.Name)
		}
		want[class.Name] = map[bool]string{true: "MigDeviceConfig", false: "GpuConfig"}[strings.HasPrefix(match[1], "mig")]
		if match[1] != "gpu" && match[1] != "mig" {
			shares = append(shares, class.Name)
		}
	}
	slices.Sort(shares)
	if len(want) < 8 {
		t.Errorf("found %d classes, too few to be those of everything.values.yaml", len(want))
	}
	for _, expression := range []any{want, shares} {
		literal, err := json.Marshal(expression)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(rendered, string(literal)) != 2 {
			t.Errorf("the policies do not say %s; the classes are %q", literal, slices.Sorted(maps.Keys(want)))
		}
	}
}

// The largest claims that the API allows are within what the API server spends.
func TestConfigFitPolicyIsWithinTheBudget(t *testing.T) {
	var claim resourceapi.DeviceClaim
	var names []string
	for i := range resourceapi.DeviceRequestsMaxSize {
		name := fmt.Sprintf("request-with-a-long-name-%02d", i)
		request := firstOf(name, slices.Repeat([]string{"mig-timeslice.nvidia.com"}, resourceapi.FirstAvailableDeviceRequestMaxSize)...)
		claim.Requests, names = append(claim.Requests, request), append(names, name+"/a7")
	}
	for range resourceapi.DeviceConfigMaxSize {
		claim.Config = append(claim.Config, configFor(migConfig(byTurns), names...))
	}
	for _, prefix := range []string{"deviceconfigfit-", "deviceconfiguse-"} {
		expectMessage(t, configFitPolicy(t, prefix), "ResourceClaim", asObjects(claim)["ResourceClaim"], "")
	}
}
