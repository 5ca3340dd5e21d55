package gpu

import (
	"slices"
	"strings"
	"testing"
)

// halves is a board with two memory slices: halves with or without the engine
// of which there is one, and the whole.
func halves(minor int, mode MIGMode, switchable bool, instances ...Instance) GPU {
	return GPU{
		Minor: minor, UUID: "GPU", MIG: mode, MIGSwitchable: switchable, Instances: instances,
		Profiles: []Profile{
			{ID: 1, Name: "1g.1gb", Slices: 1, Starts: []int{0, 1}, Size: 1, MemoryBytes: 1 << 30, Engines: Engines{Multiprocessors: 8}},
			{ID: 2, Name: "1g.1gb+me", Slices: 1, Starts: []int{0, 1}, Size: 1, MemoryBytes: 1 << 30, Engines: Engines{Multiprocessors: 8, OFAEngines: 1}},
			{ID: 3, Name: "2g.2gb", Slices: 2, Starts: []int{0}, Size: 2, MemoryBytes: 2 << 30, Engines: Engines{Multiprocessors: 16, OFAEngines: 1}},
		},
	}
}

// instance is one of somebody else, with compute instances of these slices.
func instance(profile, start, size int, compute ...int) Instance {
	i := Instance{ProfileID: profile, Start: start, Size: size}
	for id, slices := range compute {
		i.Devices = append(i.Devices, MIGDevice{ComputeID: id, UUID: "MIG", Slices: slices})
	}
	return i
}

func TestShapes(t *testing.T) {
	const (
		whole = "gpu-0 "
		all   = "gpu-0-mig-1g1gb-1-1 gpu-0-mig-1g1gb-1-0 gpu-0-mig-1g1gb-me-2-1 gpu-0-mig-1g1gb-me-2-0 gpu-0-mig-2g2gb-3-0"
	)
	for name, tc := range map[string]struct {
		gpu  GPU
		want string
	}{
		"a board without MIG":                          {GPU{}, "gpu-0"},
		"MIG can be switched on":                       {halves(0, MIGDisabled, true), whole + all},
		"MIG is on and can be switched off":            {halves(0, MIGEnabled, true), whole + all},
		"MIG takes a reset":                            {halves(0, MIGDisabled, false), "gpu-0"},
		"MIG is on and stays on":                       {halves(0, MIGEnabled, false), all},
		"the driver lists no profiles yet":             {GPU{MIG: MIGDisabled, MIGSwitchable: true}, "gpu-0"},
		"somebody else has a half":                     {halves(0, MIGEnabled, true, instance(1, 0, 1, 1)), "gpu-0-mig-1g1gb-1-0 gpu-0-mig-1g1gb-1-1 gpu-0-mig-1g1gb-me-2-1"},
		"somebody else has the engine":                 {halves(0, MIGEnabled, true, instance(2, 1, 1, 1)), "gpu-0-mig-1g1gb-me-2-1 gpu-0-mig-1g1gb-1-0"},
		"somebody else has all":                        {halves(0, MIGEnabled, false, instance(3, 0, 2, 2)), "gpu-0-mig-2g2gb-3-0"},
		"one compute instance does not fill it":        {halves(0, MIGEnabled, true, instance(3, 0, 2, 1)), ""},
		"two compute instances":                        {halves(0, MIGEnabled, true, instance(3, 0, 2, 1, 1)), ""},
		"no compute instance":                          {halves(0, MIGEnabled, true, instance(1, 1, 1)), "gpu-0-mig-1g1gb-1-0 gpu-0-mig-1g1gb-me-2-0"},
		"an instance of a profile that NVML lists not": {halves(0, MIGEnabled, true, instance(9, 1, 1, 1)), "gpu-0-mig-1g1gb-1-0 gpu-0-mig-1g1gb-me-2-0"},
		"two instances": {halves(0, MIGEnabled, true, instance(1, 1, 1, 1), instance(2, 0, 1, 1)),
			"gpu-0-mig-1g1gb-me-2-0 gpu-0-mig-1g1gb-1-1"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := names(Shapes([]GPU{tc.gpu}, ByDefault)); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func names(shapes []Shape) string {
	var all []string
	for _, shape := range shapes {
		all = append(all, shape.Name())
	}
	return strings.Join(all, " ")
}

func TestWholeGPUsComeBeforeAllPartitions(t *testing.T) {
	shapes := Shapes([]GPU{halves(1, MIGDisabled, true), halves(0, MIGEnabled, false), {Minor: 2}}, ByDefault)
	var types []string
	for _, shape := range shapes {
		types = append(types, shape.Type())
	}
	if want := slices.Concat([]string{"gpu", "gpu"}, slices.Repeat([]string{"mig"}, 10)); !slices.Equal(types, want) {
		t.Errorf("got %q, want %q", types, want)
	}
}

func TestWithoutLeavesOutWhatIsOurs(t *testing.T) {
	g := halves(0, MIGEnabled, true, instance(1, 0, 1, 1), instance(2, 1, 1, 1))
	less := g.Without(func(i Instance) bool { return i.Start == 0 })
	if len(less.Instances) != 1 || less.Instances[0].Start != 1 {
		t.Errorf("got %+v", less.Instances)
	}
	if len(g.Instances) != 2 || g.Instances[0].Start != 0 || g.Instances[1].Start != 1 {
		t.Errorf("the GPU itself was changed: %+v", g.Instances)
	}
}

func TestCounters(t *testing.T) {
	for name, tc := range map[string]struct {
		gpu  GPU
		want string
	}{
		"none for what is only whole":       {halves(0, MIGDisabled, false), ""},
		"slices, and the engine":            {halves(0, MIGDisabled, true), "memory-slice-0 memory-slice-1 ofa-engines"},
		"no engine that is gone":            {halves(0, MIGEnabled, true, instance(2, 1, 1, 1)), ""},
		"one slice keeps two apart":         {halves(0, MIGEnabled, true, instance(1, 0, 1, 1)), "memory-slice-1"},
		"none where all is somebody else's": {halves(0, MIGEnabled, true, instance(3, 0, 2, 2)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var names []string
			for _, c := range Counters(Shapes([]GPU{tc.gpu}, ByDefault)) {
				names = append(names, c.Name)
			}
			if got := strings.Join(names, " "); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestAPlacementThatNoBoardHasFitsNowhere(t *testing.T) {
	room := Room{slices: ^uint64(0), memory: 1 << 40}
	for _, p := range []Profile{{Size: 0}, {Size: -1}, {Size: 65}, {Size: 1 << 40}} {
		if room.Fits(p, 0) {
			t.Errorf("a placement of size %d fits", p.Size)
		}
	}
	for _, start := range []int{-1, 64, 1 << 40} {
		if room.Fits(Profile{Size: 1}, start) {
			t.Errorf("a placement at %d fits", start)
		}
	}
	if !room.Fits(Profile{Size: 64}, 0) || !room.Fits(Profile{Size: 1}, 63) {
		t.Error("the largest placement does not fit")
	}
}
