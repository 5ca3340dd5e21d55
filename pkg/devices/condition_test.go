package devices

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"
)

const driver = "gpu.nvidia.com"

func TestConditionsAreThePartsOfASelector(t *testing.T) {
	memory := Field{SectionCapacity, driver, "memory"}
	product := Field{SectionAttributes, driver, "productName"}
	for name, tc := range map[string]struct {
		expression string
		texts      []string
		reads      [][]Field
	}{
		"one": {
			`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity('80Gi')) >= 0`,
			[]string{`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) >= 0`},
			[][]Field{{memory}},
		},
		"three": {
			`device.driver == "a" && (device.allowMultipleAllocations && "productName" in device.attributes["gpu.nvidia.com"])`,
			[]string{`device.driver == "a"`, `device.allowMultipleAllocations`, `"productName" in device.attributes["gpu.nvidia.com"]`},
			[][]Field{{{Section: SectionDriver}}, {{Section: SectionShared}}, {product}},
		},
		"alternatives stay together": {
			`device.attributes["gpu.nvidia.com"].productName == "a" || device.attributes["gpu.nvidia.com"]["productName"] == "b" && true`,
			[]string{`device.attributes["gpu.nvidia.com"].productName == "a" || device.attributes["gpu.nvidia.com"]["productName"] == "b" && true`},
			[][]Field{{product}},
		},
		"optional": {
			`device.attributes[?"gpu.nvidia.com"].?productName.orValue("") == "a"`,
			[]string{`device.attributes[?"gpu.nvidia.com"].?productName.orValue("") == "a"`},
			[][]Field{{product}},
		},
		"bound, and hidden by a binding of its own name": {
			`cel.bind(d, device.attributes["gpu.nvidia.com"], cel.bind(d, d.productName, d == "a") && has(d.productName))`,
			[]string{`d == "a"`, `has(d.productName)`},
			[][]Field{{product}, {product}},
		},
		"nothing of the device": {`true`, []string{`true`}, [][]Field{nil}},
		"no expression":         {`device.`, []string{`device.`}, [][]Field{nil}},
	} {
		t.Run(name, func(t *testing.T) {
			got := read(tc.expression).Conditions
			if len(got) != len(tc.texts) {
				t.Fatalf("got %d parts, want %q: %+v", len(got), tc.texts, got)
			}
			for i, part := range got {
				if part.Text != tc.texts[i] {
					t.Errorf("part %d is %q, want %q", i, part.Text, tc.texts[i])
				}
				if !slices.Equal(part.Reads, tc.reads[i]) {
					t.Errorf("part %d reads %v, want %v", i, part.Reads, tc.reads[i])
				}
			}
		})
	}
}

// A part has to mean by itself what it means in the selector: where all parts are true the
// selector is, and where it is not, one of them is not.
func FuzzConditionsMeanWhatTheSelectorMeans(f *testing.F) {
	for _, seed := range []string{
		`true`, `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) >= 0`,
		`device.driver == "gpu.nvidia.com" && device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) >= 0`,
		`cel.bind(c, device.capacity["gpu.nvidia.com"], c.memory.isGreaterThan(quantity("1Gi")) && c.memory.compareTo(quantity("80Gi")) >= 0)`,
		`cel.bind(a, a, a)`, `cel.bind(device, device.attributes, device["x"].y == 1 && true)`,
		`["a", "b"].exists(x, x == device.driver) && device.attributes["gpu.nvidia.com"].index in [1, 2]`,
		`has(device.attributes["gpu.nvidia.com"].index) ? device.attributes["gpu.nvidia.com"].index == 0 : false`,
		`device.attributes[?"x"].?y.hasValue() || !device.allowMultipleAllocations`,
		`semver("1.0.0").isLessThan(device.attributes["gpu.nvidia.com"].cudaComputeCapability) && "a".matches("b")`,
		"device.driver\n  == 'x' // why\n&& quantity('1').isInteger()", `{"a": 1}.a == 1 && [1][0] == 1 && -1 < 2 && !false`,
	} {
		f.Add(seed)
	}
	device := &Device{ID: ID{Pool: PoolID{Driver: driver, Name: "node"}, Name: "gpu-0"}, Device: &resourceapi.Device{
		Name: "gpu-0",
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"type":                  {StringValue: ptr.To("gpu")},
			"productName":           {StringValue: ptr.To("NVIDIA H100 80GB HBM3")},
			"index":                 {IntValue: ptr.To(int64(0))},
			"cudaComputeCapability": {VersionValue: ptr.To("9.0.0")},
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("81152Mi")}},
	}}
	selectors := NewSelectors()
	f.Fuzz(func(t *testing.T, expression string) {
		parts := read(expression).Conditions
		if len(parts) == 0 {
			t.Fatal("no parts")
		}
		costs := uint64(100_000)
		whole := cel.GetCompiler(language).CompileCELExpression(expression, cel.Options{CostLimit: &costs})
		if whole.Error != nil || Compile(expression).Err != nil {
			return
		}
		matches, _, err := whole.DeviceMatches(t.Context(), device.Input())
		if err != nil {
			matches = false
		}
		all := true
		for _, part := range parts {
			passes, _ := selectors.Get(part.Expression).Matches(t.Context(), device.Input())
			all = all && passes
		}
		if all != matches {
			t.Errorf("%q is %t (%v), and its parts %+v are %t", expression, matches, err, parts, all)
		}
	})
}
