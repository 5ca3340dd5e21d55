package explain

import (
	"errors"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/pkg/devices"
)

// Whatever a selector is, what is said of it is a sentence.
func FuzzAnySelectorCanBeSpokenOf(f *testing.F) {
	for _, seed := range []string{
		`true`, eighty, `device.`, `device.driver == "gpu.nvidia.com" && ` + eighty, `cel.bind(a, a, a)`,
		`cel.bind(device, device.attributes, device["x"].y == 1 && true)`,
		`["a", "b"].exists(x, x == device.driver) && device.attributes["gpu.nvidia.com"].index in [1, 2]`,
		`device.attributes[?"x"].?y.hasValue() || !device.allowMultipleAllocations`,
		`semver("1.0.0").isLessThan(device.attributes["gpu.nvidia.com"].cudaComputeCapability) && "a".matches("b")`,
		"device.driver\n  == 'x' // why\n&& quantity('1').isInteger()",
	} {
		f.Add(seed)
	}
	m := newMachine().gpus(1, h100, "81152Mi").imagined()
	dev := devices.NewStock(m.offer.slices, nil).Devices[0]
	diagnoser := newDiagnoser(nil, devices.NewSelectors())
	f.Fuzz(func(t *testing.T, expression string) {
		d := &diagnosis{diagnoser: diagnoser, ctx: t.Context(), offer: m.offer}
		n := d.nearest(expression, []*devices.Device{dev})
		for _, said := range []string{n.values(1), n.values(2), d.broken(expression, dev, errors.New("why"), "it").Text} {
			if strings.TrimSpace(said) == "" {
				t.Errorf("nothing is said of %q", expression)
			}
		}
		d.selectorHint(n)
	})
}
