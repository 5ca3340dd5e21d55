package template

import (
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

func TestMissing(t *testing.T) {
	node := liveNode()
	whole := func() []*resourceapi.ResourceSlice {
		return append(liveSlices(t, "p5.48xlarge", node), otherDriver(node))
	}
	learned := Learn(node, whole(), nil, StartupTaints{}, learnedAt)
	predicted, err := Predict(driver, groupOf(t, "p5.48xlarge"), "", nil, StartupTaints{})
	if err != nil {
		t.Fatal(err)
	}
	n := len(whole()) - 1
	for name, test := range map[string]struct {
		template *Template
		change   func([]*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice
		want     []string
	}{
		"complete":                                 {template: learned},
		"complete, as predicted":                   {template: predicted},
		"complete, and there is no template":       {},
		"no slices":                                {template: predicted, change: none, want: []string{noSlice(driver)}},
		"no slices of any driver":                  {template: learned, change: none, want: []string{noSlice("dra.net"), noSlice(driver)}},
		"no slices, and there is no template":      {change: none, want: []string{noSlice(driver)}},
		"one slice of ours is not there":           {template: predicted, change: without(0), want: []string{lacks(n-1, n, node.Name)}},
		"one slice of ours, without a template":    {change: without(0), want: []string{lacks(n-1, n, node.Name)}},
		"the other driver has none":                {template: learned, change: without(n), want: []string{noSlice("dra.net")}},
		"the other driver, and no pod needs it":    {template: predicted, change: without(n)},
		"the other driver, and no template":        {change: without(n)},
		"the other driver has half of its pool":    {template: predicted, change: halfOf(n), want: []string{"driver dra.net has published 1 of the 2 slices of pool nics"}},
		"half of another's pool, without template": {change: halfOf(n)},
		"the pool is being replaced":               {template: predicted, change: newer, want: []string{lacks(1, n, node.Name)}},
		"a pool without devices": {template: learned, change: empty, want: []string{
			"driver " + driver + " has published its pool without a device, and nodes of the group have 208",
		}},
		"a pool too few": {template: withTwoPools(learned), want: []string{"driver dra.net has published 1 pool, and nodes of the group have 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			all := whole()
			if test.change != nil {
				all = test.change(all)
			}
			if got := Missing(driver, test.template, node, all); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func lacks(has, of int, pool string) string {
	return "driver " + driver + " has published " + strconv.Itoa(has) + " of the " + strconv.Itoa(of) + " slices of pool " + pool
}

func none([]*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice { return nil }

func without(i int) func([]*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	return func(all []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice { return slices.Delete(all, i, i+1) }
}

func halfOf(i int) func([]*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	return func(all []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
		all[i].Spec.Pool.ResourceSliceCount = 2
		return all
	}
}

// newer adds the first slice of a new generation.
func newer(all []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	next := all[0].DeepCopy()
	next.Name, next.Spec.Pool.Generation = "next", next.Spec.Pool.Generation+1
	return append(all, next)
}

// empty is what a node publishes that has no device, or offers none.
func empty(all []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	all[0].Spec.Devices, all[0].Spec.Pool.ResourceSliceCount = nil, 1
	return []*resourceapi.ResourceSlice{all[0], all[len(all)-1]}
}

func withTwoPools(t *Template) *Template {
	two := *t
	second := otherDriver(&corev1.Node{ObjectMeta: t.Node.ObjectMeta})
	second.Name, second.Spec.Pool.Name = "second", "more"
	two.Slices = append(slices.Clone(t.Slices), second)
	return &two
}
