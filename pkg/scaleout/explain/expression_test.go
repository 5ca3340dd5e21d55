package explain

import (
	"errors"
	"slices"
	"testing"

	"k8s.io/dynamic-resource-allocation/cel"
)

func TestConjunctsAreThePartsOfASelector(t *testing.T) {
	memory := field{sectionCapacity, driver, "memory"}
	product := field{sectionAttributes, driver, "productName"}
	for name, tc := range map[string]struct {
		expression string
		texts      []string
		reads      [][]field
	}{
		"one": {
			`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity('80Gi')) >= 0`,
			[]string{`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) >= 0`},
			[][]field{{memory}},
		},
		"three": {
			`device.driver == "a" && (device.allowMultipleAllocations && "productName" in device.attributes["gpu.nvidia.com"])`,
			[]string{`device.driver == "a"`, `device.allowMultipleAllocations`, `"productName" in device.attributes["gpu.nvidia.com"]`},
			[][]field{{{section: "driver"}}, {{section: "allowMultipleAllocations"}}, {product}},
		},
		"alternatives stay together": {
			`device.attributes["gpu.nvidia.com"].productName == "a" || device.attributes["gpu.nvidia.com"]["productName"] == "b" && true`,
			[]string{`device.attributes["gpu.nvidia.com"].productName == "a" || device.attributes["gpu.nvidia.com"]["productName"] == "b" && true`},
			[][]field{{product}},
		},
		"optional": {
			`device.attributes[?"gpu.nvidia.com"].?productName.orValue("") == "a"`,
			[]string{`device.attributes[?"gpu.nvidia.com"].?productName.orValue("") == "a"`},
			[][]field{{product}},
		},
		"bound, and hidden by a binding of its own name": {
			`cel.bind(d, device.attributes["gpu.nvidia.com"], cel.bind(d, d.productName, d == "a") && has(d.productName))`,
			[]string{`d == "a"`, `has(d.productName)`},
			[][]field{{product}, {product}},
		},
		"nothing of the device": {`true`, []string{`true`}, [][]field{nil}},
		"no expression":         {`device.`, []string{`device.`}, [][]field{nil}},
	} {
		t.Run(name, func(t *testing.T) {
			got := conjuncts(tc.expression)
			if len(got) != len(tc.texts) {
				t.Fatalf("got %d parts, want %q: %+v", len(got), tc.texts, got)
			}
			for i, part := range got {
				if part.text != tc.texts[i] {
					t.Errorf("part %d is %q, want %q", i, part.text, tc.texts[i])
				}
				if !slices.Equal(part.reads, tc.reads[i]) {
					t.Errorf("part %d reads %v, want %v", i, part.reads, tc.reads[i])
				}
			}
		})
	}
}

// A part has to mean by itself what it means in the selector: where all parts are true the
// selector is, and where it is not, one of them is not.
func FuzzConjunctsMeanWhatTheSelectorMeans(f *testing.F) {
	for _, seed := range []string{
		`true`, eighty, `device.driver == "gpu.nvidia.com" && ` + eighty,
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
	dev := newStock(newMachine().gpus(1, h100, "81152Mi").offer).devices[0]
	d := NewDiagnoser(nil)
	f.Fuzz(func(t *testing.T, expression string) {
		parts := conjuncts(expression)
		if len(parts) == 0 {
			t.Fatal("no parts")
		}
		costs := uint64(100_000)
		whole := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(expression, cel.Options{CostLimit: &costs})
		if whole.Error != nil {
			return
		}
		matches, _, err := whole.DeviceMatches(t.Context(), dev.input())
		if err != nil {
			matches = false
		}
		all := true
		for _, part := range parts {
			got := d.evaluate(t.Context(), part.expression, dev)
			all = all && got.matches
			for _, read := range part.reads {
				read.say(dev)
			}
		}
		if all != matches {
			t.Errorf("%q is %t (%v), and its parts %+v are %t", expression, matches, err, parts, all)
		}
		diagnosis := &diagnosis{Diagnoser: d, ctx: t.Context(), offer: Offer{Imagined: true}}
		diagnosis.selectorHint(diagnosis.nearest(expression, []*device{dev}))
		diagnosis.broken(expression, dev, errors.New("why"), "it")
	})
}
