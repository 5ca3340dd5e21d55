package devices

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
)

// Only an expression that may read any attribute keeps nodes apart whose UUIDs differ, which is
// all nodes.
func TestSelectorsReadWhatTheyName(t *testing.T) {
	for expression, everything := range map[string]bool{
		`device.driver == "gpu.nvidia.com"`:                                                                     false,
		`device.attributes["gpu.nvidia.com"].type == "gpu"`:                                                     false,
		`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("70Gi")) >= 0`:                             false,
		`device.attributes["gpu.nvidia.com"].driverVersion.isGreaterThan(semver("1.2.3"))`:                      false,
		`device.attributes["gpu.nvidia.com"].?productName.orValue("") == "H100"`:                                false,
		`cel.bind(gpu, device.attributes["gpu.nvidia.com"], gpu.type == "gpu" && gpu.?index.orValue(0) > 1)`:    false,
		`device.attributes["gpu.nvidia.com"].exists(name, name == "uuid")`:                                      true,
		`device.attributes["gpu.nvidia.com"][device.driver] == "gpu"`:                                           true,
		`"type" in device.attributes["gpu.nvidia.com"]`:                                                         false,
		`device.attributes["gpu.nvidia.com"].type in ["gpu", "mig"]`:                                            false,
		`size(device.attributes["gpu.nvidia.com"].type) == 3`:                                                   false,
		`device.driver in device.attributes["gpu.nvidia.com"]`:                                                  true,
		`size(device.attributes["gpu.nvidia.com"]) > 5`:                                                         true,
		`device.attributes["gpu.nvidia.com"].size() > 5`:                                                        true,
		`device.attributes == device.attributes`:                                                                true,
		`device == device`:                                                                                      true,
		`{"a": device.attributes["gpu.nvidia.com"]}.a.uuid == "x"`:                                              true,
		`{"a": device.attributes["gpu.nvidia.com"].uuid}.a == "x"`:                                              false,
		`[device.attributes["gpu.nvidia.com"]].exists(d, d.uuid == "a")`:                                        true,
		`[device.attributes["gpu.nvidia.com"].uuid].exists(d, d == "a")`:                                        false,
		`device.attributes[?"gpu.nvidia.com"].optMap(m, m.uuid == "x").orValue(false)`:                          true,
		`cel.bind(u, "uu" + "id", device.attributes["gpu.nvidia.com"][u] == "a")`:                               true,
		`cel.bind(gpu, true ? device.attributes["gpu.nvidia.com"] : device.attributes["x"], gpu.type == "gpu")`: true,
	} {
		got := Compile(expression)
		if got.Err != nil || got.Everything != everything {
			t.Errorf("%s: reads everything %v (%v), want %v", expression, got.Everything, got.Err, everything)
		}
	}
}

// The result of an expression may change only with attributes in its Names.
func TestSelectorsNameWhatTheyRead(t *testing.T) {
	const name = "uuid"
	device := func(value string) *Device {
		return &Device{
			Device: &resourceapi.Device{Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{name: {StringValue: &value}}},
			ID:     ID{Pool: PoolID{Driver: "gpu.nvidia.com"}},
		}
	}
	told, read := 0, 0
	for _, value := range []string{
		`device.attributes["gpu.nvidia.com"].uuid`,
		`device.attributes["gpu.nvidia.com"]["uuid"]`,
		`device.attributes[?"gpu.nvidia.com"].?uuid.orValue("")`,
		`cel.bind(d, device, d.attributes["gpu.nvidia.com"].uuid)`,
		`cel.bind(d, device.attributes, cel.bind(e, d["gpu.nvidia.com"], e.uuid))`,
		`cel.bind(u, device.attributes["gpu.nvidia.com"].uuid + "", u)`,
		`cel.bind(u, "uu" + "id", device.attributes["gpu.nvidia.com"][u])`,
		`[device][0].attributes["gpu.nvidia.com"].uuid`,
		`{"a": device.attributes}["a"]["gpu.nvidia.com"].uuid`,
		`(device.driver == "" ? device.attributes["x"] : device.attributes["gpu.nvidia.com"]).uuid`,
		`string(quantity("1").isGreaterThan(quantity(device.attributes["gpu.nvidia.com"].uuid)))`,
		`device.driver`,
	} {
		for _, form := range []string{`VALUE == "0"`, `["0", "1"].exists(x, x == VALUE)`, `[VALUE].exists(x, x == "0")`, `{VALUE: true}["0"]`, `[VALUE].map(y, y)[0] == "0"`} {
			expression := strings.ReplaceAll(form, "VALUE", value)
			selector := Compile(expression)
			if selector.Err != nil {
				t.Fatalf("%s %v", expression, selector.Err)
			}
			was, errWas := selector.Matches(t.Context(), device("0").Input())
			is, errIs := selector.Matches(t.Context(), device("2").Input())
			reads := selector.Everything
			for _, n := range selector.Names {
				reads = reads || n == name
			}
			differs := was != is || (errWas == nil) != (errIs == nil)
			if differs && !reads {
				t.Errorf("%s reads %s, and is said to read %q", expression, name, selector.Names)
			}
			if differs {
				told++
			}
			if reads {
				read++
			}
		}
	}
	if told < 20 || read < told {
		t.Errorf("%d expressions differ, and %d read the attribute: the test shows too little", told, read)
	}
}

func TestSelectorsThatCannotBeUsed(t *testing.T) {
	costly := `type(device.attributes) == type(device.attributes)`
	for expression, want := range map[string]string{
		`device.`:       "does not compile: ",
		`device.driver`: "does not compile: ",
		costly:          "may cost ",
		`true`:          "",
	} {
		selector := NewSelectors().Get(expression)
		_, err := selector.Matches(t.Context(), (&Device{Device: &resourceapi.Device{}}).Input())
		if want == "" {
			if selector.Err != nil || err != nil {
				t.Errorf("%s: %v, %v", expression, selector.Err, err)
			}
			continue
		}
		if selector.Err == nil || !strings.HasPrefix(selector.Err.Error(), want) || err == nil {
			t.Errorf("%s: %v, %v, want %q", expression, selector.Err, err, want)
		}
	}
}

// No number may keep the planner busy, however it is written.
func TestNumbersAreBounded(t *testing.T) {
	const memory = `device.capacity["gpu.nvidia.com"].memory.compareTo(VALUE) > 0`
	for value, fine := range map[string]bool{
		`quantity("70Gi")`:                        true,
		`quantity("1E")`:                          true,
		`quantity("8e10")`:                        true,
		`quantity("8E+10")`:                       true,
		`quantity(device.attributes["a"].memory)`: true,
		`quantity("1e-9999999")`:                  false,
		`quantity("1e+9999999")`:                  false,
		`quantity("1E9999999")`:                   false,
		`quantity("1e-" + "9999999")`:             false,
		`cel.bind(n, "1e-9999999", quantity(n))`:  false,
		`["1e-9999999"].map(n, quantity(n))[0]`:   false,
		`quantity(device.attributes["a"].?memory.orValue("1e-9999999"))`: false,
		`(isQuantity("1e-9999999") ? quantity("1") : quantity("2"))`:     false,
		`quantity("1` + strings.Repeat("0", 1000) + `")`:                 false,
	} {
		selector := Compile(strings.ReplaceAll(memory, "VALUE", value))
		if (selector.Err == nil) != fine {
			t.Errorf("%s: %v", value, selector.Err)
		}
		if selector.Err != nil && selector.program.Expression != "" {
			t.Errorf("%s is compiled though it is refused", value)
		}
	}
}

func TestSelectorsAreCompiledOnce(t *testing.T) {
	s := NewSelectors()
	if once := s.Get(`true`); s.Get(`true`) != once {
		t.Error("an expression is compiled twice")
	}
	first := s.Get(`device.driver == "0"`)
	for i := range remembered {
		s.Get(`device.driver == "` + strings.Repeat("x", i) + `"`)
	}
	if s.Get(`device.driver == "0"`) == first {
		t.Errorf("more than %d expressions are kept", remembered)
	}
}

func TestSharedDevicesAreSeenAsSuch(t *testing.T) {
	d := &Device{Device: &resourceapi.Device{AllowMultipleAllocations: ptr.To(true)}}
	if matches, err := Compile(`device.allowMultipleAllocations`).Matches(t.Context(), d.Input()); !matches || err != nil || !d.Shared() {
		t.Errorf("the device is not shared: %v", err)
	}
}
