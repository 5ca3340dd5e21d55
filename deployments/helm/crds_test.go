package helm_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/json"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// These tests judge objects by the chart's CRDs as an API server does.

// mistakes are specs by kind; the words are of what the API server says, "" is accepted.
var mistakes = map[string]map[string]string{
	"gpupolicies": {
		`shapes: {whole: {}}`: "",
		`shapes: {}`:          "should have at least 1 properties",
		`{shapes: {whole: {}}, health: [{condition: xid, effect: None, recovery: Reset}]}`:                                 "",
		`{shapes: {whole: {}}, health: [{condition: gpu-lost, effect: NoSchedule, recovery: Reset}]}`:                      "no reset reaches a GPU with this condition",
		`{shapes: {whole: {}}, overrides: [{when: "device.attributes['a'].b == 'c'", shapes: {mig: {}}}]}`:                 "",
		`{shapes: {whole: {}, mig: {creation: Never}}}`:                                                                    "",
		`{shapes: {whole: {}, mig: {creation: never}}}`:                                                                    `Unsupported value: "never"`,
		`{shapes: {whole: {}}, overrides: [{when: "productName == 'NVIDIA L4'", shapes: {mig: {}}}]}`:                      "looks at no device",
		`{shapes: {whole: {consumableShares: unlimited}}}`:                                                                 "",
		`{shapes: {whole: {consumableShares: 4}}}`:                                                                         "",
		`{shapes: {whole: {consumableShares: 1}}}`:                                                                         "use unlimited, memory, or a number of shares from 2 to 1024",
		`{shapes: {whole: {consumableShares: 1025}}}`:                                                                      "use unlimited, memory, or a number of shares from 2 to 1024",
		`{shapes: {whole: {consumableShares: "4"}}}`:                                                                       "use unlimited, memory, or a number of shares from 2 to 1024",
		`{shapes: {whole: {consumableShares: disabled}}}`:                                                                  "use unlimited, memory, or a number of shares from 2 to 1024",
		`{shapes: {timeSlice: {replicas: 1}}}`:                                                                             "greater than or equal to 2",
		`{shapes: {timeSlice: {replicas: 2, interval: Tiny}}}`:                                                             "interval: Unsupported value",
		`{shapes: {mps: {clients: 49}}}`:                                                                                   "less than or equal to 48",
		`{shapes: {mig: {profiles: ["1g"]}}}`:                                                                              "should match",
		`{shapes: {mig: {shared: [{profile: 1g.10gb}]}}}`:                                                                  "give exactly one of timeSlice and mps",
		`{shapes: {mig: {shared: [{profile: 1g.10gb, mps: {clients: 2}}, {profile: 1g.10gb, timeSlice: {replicas: 2}}]}}}`: "",
	},
	"gpunodegroups": {
		`provider: {eks: {nodegroup: a}}`: "",
		`{provider: {eks: {nodegroup: a}}, provisionTimeout: 45m, pricePerHour: "55.04", template: {taints: [{key: a, value: b, effect: NoSchedule}], driverVersion: 580.95.05, cudaDriverVersion: "13.0"}}`: "",
		`{provider: {eks: {nodegroup: a}}, template: {gpus: {count: 8, productName: NVIDIA L4, memory: 23034Mi}}}`:                                                                                           "",
		`{provider: {eks: {nodegroup: a}}, min: 3, max: 2}`: "min is over max",
		`{provider: {}}`: "give exactly one of eks and nodeSelector",
		`{provider: {eks: {nodegroup: a}, nodeSelector: {a: b}}}`:                                                                                           "give exactly one of eks and nodeSelector",
		`{provider: {autoScalingGroup: b}}`:                                                                                                                 "give exactly one of eks and nodeSelector",
		`{provider: {eks: {nodegroup: a}, autoScalingGroup: b}}`:                                                                                            "autoScalingGroup is a self-managed group",
		`{provider: {eks: {nodegroup: a}}, pairing: magic}`:                                                                                                 `supported values: "placeholder", "direct", "observe"`,
		`{provider: {eks: {nodegroup: a}}, scaleInAfter: "-5m"}`:                                                                                            "scaleInAfter is negative",
		`{provider: {eks: {nodegroup: a}}, pricePerHour: "1e-99999999"}`:                                                                                    "without an exponent",
		`{provider: {eks: {nodegroup: a}}, template: {allocatable: {cpu: "1E99999999"}}}`:                                                                   "without an exponent",
		`{provider: {eks: {nodegroup: a}}, template: {gpus: {count: 1, productName: x, memory: "1e99999999"}}}`:                                             "without an exponent",
		`{provider: {eks: {nodegroup: a}}, template: {gpus: {count: 1, productName: x}}}`:                                                                   "give board",
		`{provider: {nodeSelector: {a: b}}, pairing: direct}`:                                                                                               "pairing direct calls AWS",
		`{provider: {eks: {nodegroup: a}}, provisionTimeout: 30}`:                                                                                           "must be of type string",
		`{provider: {eks: {nodegroup: a}}, provisionTimeout: 30 minutes}`:                                                                                   "give a duration with its unit",
		`{provider: {eks: {nodegroup: a}}, provisionTimeout: "-5m"}`:                                                                                        "give a duration with its unit",
		`{provider: {eks: {nodegroup: a}}, pricePerHour: "-3"}`:                                                                                             "the price is negative",
		`{provider: {eks: {nodegroup: a}}, pricePerHour: -3}`:                                                                                               "the price is negative",
		`{provider: {eks: {nodegroup: a}}, template: {taints: [{key: a, effect: NO_SCHEDULE}]}}`:                                                            "the effect of a taint is NoSchedule",
		`{provider: {eks: {nodegroup: a}}, template: {taints: [{key: startup-taint.cluster-autoscaler.kubernetes.io/mica, value: x, effect: NoSchedule}]}}`: "nodes lose startup taints",
		`{provider: {eks: {nodegroup: a}}, template: {driverVersion: R580}}`:                                                                                "write the version as nvidia-smi shows it",
		`{provider: {eks: {nodegroup: a}}, template: {gpus: {count: 8, productName: NVIDIA L4, memory: 0}}}`:                                                "give the memory of one GPU",
		`{provider: {eks: {nodegroup: a}}, template: {gpus: {count: 8, productName: NVIDIA L4, memory: "-1Gi"}}}`:                                           "give the memory of one GPU",
	},
	"gpuheadrooms": {
		`{deviceClassName: gpu.nvidia.com, selectors: ["device.attributes['gpu.nvidia.com'].type == 'gpu'"], schedule: [{start: "55 8 * * 1-5", duration: 10h, timeZone: Asia/Seoul, devices: 2}]}`: "",
		`{deviceClassName: nvidia.com/gpu}`:                                                                  "give the name of a DeviceClass",
		`{deviceClassName: a, selectors: ["type == 'gpu'"]}`:                                                 "looks at no device",
		`{deviceClassName: a, schedule: [{start: "0 55 8 * * 1-5", duration: 1h, devices: 1}]}`:              "the five fields of cron",
		`{deviceClassName: a, schedule: [{start: "TZ=UTC 55 8 * * 1", duration: 1h, devices: 1}]}`:           "the five fields of cron",
		`{deviceClassName: a, schedule: [{start: "@every 10m", duration: 1h, devices: 1}]}`:                  "the five fields of cron",
		`{deviceClassName: a, schedule: [{start: "55 8 * * 1", duration: 8 days, devices: 1}]}`:              "give a duration from 1m to 168h",
		`{deviceClassName: a, schedule: [{start: "55 8 * * 1", duration: 200h, devices: 1}]}`:                "give a duration from 1m to 168h",
		`{deviceClassName: a, schedule: [{start: "55 8 * * 1", duration: 1h, timeZone: Local, devices: 1}]}`: "give a name of the tz database",
		`{deviceClassName: a, schedule: [{start: "55 8 * * 1", duration: 1h, timeZone: "+9", devices: 1}]}`:  "give a name of the tz database",
	},
	"gpubudgets": {
		`{namespaces: [team-a], gpus: 16}`:             "",
		`{namespaces: [team-a]}`:                       "the budget bounds nothing",
		`{namespaces: ["team-*"], gpus: 16}`:           "patterns such as team-* are not understood",
		`{pricePerHour: "-1"}`:                         "the price is negative",
		`{rate: {nodes: 4, period: 30s}}`:              "give a period from 1m to 24h",
		`{gpus: 1, rate: {nodes: 4, period: 10 mins}}`: "period",
	},
}

func TestMistakesAreRefusedWithWords(t *testing.T) {
	for kind, specs := range mistakes {
		judge := judgeOf(t, kind)
		for spec, want := range specs {
			t.Run(kind+"/"+spec, func(t *testing.T) {
				said := judge(t, spec)
				switch {
				case want == "" && said != "":
					t.Errorf("is refused: %s", said)
				case !strings.Contains(said, want):
					t.Errorf("got %q, want one with %q", said, want)
				}
			})
		}
	}
}

// judgeOf reads a CRD.
func judgeOf(t *testing.T, kind string) func(t *testing.T, spec string) string {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("mica/crds/mica.gpu_%s.yaml", kind))
	if err != nil {
		t.Fatal(err)
	}
	var written apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(content, &written); err != nil {
		t.Fatal(err)
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(&written)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&written.Spec)
	var crd apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&written, &crd, nil); err != nil {
		t.Fatal(err)
	}
	schema := crd.Spec.Validation
	if schema == nil {
		schema = crd.Spec.Versions[0].Schema
	}
	structural, err := structuralschema.NewStructural(schema.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	openAPI, _, err := validation.NewSchemaValidator(schema.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	rules := cel.NewValidator(structural, true, celconfig.PerCallLimit)
	return func(t *testing.T, spec string) string {
		text := fmt.Sprintf("apiVersion: mica.gpu/v1alpha1\nkind: %s\nmetadata: {name: a}\nspec: %s\n", crd.Spec.Names.Kind, braced(spec))
		encoded, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		// As an API server reads it: whole numbers are no floats.
		var object map[string]any
		if err := json.Unmarshal(encoded, &object); err != nil {
			t.Fatal(err)
		}
		defaulting.Default(object, structural)
		problems := validation.ValidateCustomResource(nil, object, openAPI)
		if len(problems) == 0 {
			problems, _ = rules.Validate(t.Context(), nil, structural, object, nil, celconfig.RuntimeCELCostBudget)
		}
		if err := problems.ToAggregate(); err != nil {
			return err.Error()
		}
		return ""
	}
}

func braced(spec string) string {
	if strings.HasPrefix(spec, "{") {
		return spec
	}
	return "{" + spec + "}"
}
