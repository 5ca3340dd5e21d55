package gpu

import (
	"slices"
	"strings"
	"testing"
)

// halves is a board with two memory slices: halves with or without the engine
// that is there once, and the whole.
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

// instance is an administrator's, with compute instances of these slices.
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
		"an administrator has a half":                  {halves(0, MIGEnabled, true, instance(1, 0, 1, 1)), "gpu-0-mig-1g1gb-1-0 gpu-0-mig-1g1gb-1-1 gpu-0-mig-1g1gb-me-2-1"},
		"an administrator has the engine":              {halves(0, MIGEnabled, true, instance(2, 1, 1, 1)), "gpu-0-mig-1g1gb-me-2-1 gpu-0-mig-1g1gb-1-0"},
		"an administrator has all":                     {halves(0, MIGEnabled, false, instance(3, 0, 2, 2)), "gpu-0-mig-2g2gb-3-0"},
		"one compute instance does not fill it":        {halves(0, MIGEnabled, true, instance(3, 0, 2, 1)), ""},
		"two compute instances":                        {halves(0, MIGEnabled, true, instance(3, 0, 2, 1, 1)), ""},
		"no compute instance":                          {halves(0, MIGEnabled, true, instance(1, 1, 1)), "gpu-0-mig-1g1gb-1-0 gpu-0-mig-1g1gb-me-2-0"},
		"an instance of a profile that NVML lists not": {halves(0, MIGEnabled, true, instance(9, 1, 1, 1)), "gpu-0-mig-1g1gb-1-0 gpu-0-mig-1g1gb-me-2-0"},
		"two instances": {halves(0, MIGEnabled, true, instance(1, 1, 1, 1), instance(2, 0, 1, 1)),
			"gpu-0-mig-1g1gb-1-1 gpu-0-mig-1g1gb-me-2-0"},
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

// A policy offers what it names, in the order in which it is published: entire
// GPUs by shape, then GPU by GPU what can be cut from it, for one claim each before
// in shares.
func TestShapesOfAPolicy(t *testing.T) {
	const (
		halves1   = "gpu-0-mig-1g1gb-1-1 gpu-0-mig-1g1gb-1-0 "
		halves1TS = "gpu-0-mig-1g1gb-1-1-timeslice gpu-0-mig-1g1gb-1-0-timeslice "
		engine    = "gpu-0-mig-1g1gb-me-2-1 gpu-0-mig-1g1gb-me-2-0 "
		all       = "gpu-0-mig-2g2gb-3-0 "
	)
	slicing, mps := TimeSlicing{Replicas: 4, Interval: DefaultInterval}, MPS{Clients: 4}
	entire := Policy{Whole: true, TimeSlicing: &slicing, MPS: &mps}
	everything := Policy{Whole: true, TimeSlicing: &slicing, MPS: &mps, MIG: true, SharedProfiles: map[string]Sharing{"1g.1gb": slicing}}
	for name, tc := range map[string]struct {
		policy Policy
		gpus   []GPU
		want   string
	}{
		"nothing": {Policy{}, []GPU{halves(0, MIGDisabled, true)}, ""},
		"entire GPUs shape by shape": {entire, []GPU{{Minor: 0}, {Minor: 1}},
			"gpu-0 gpu-1 gpu-0-timeslice gpu-1-timeslice gpu-0-mps gpu-1-mps"},
		"entire GPUs for several claims, by the same names": {Policy{Whole: true, TimeSlicing: &slicing, Consumable: &ConsumableShares{By: ByMemory}}, []GPU{{Minor: 0}, {Minor: 1}},
			"gpu-0 gpu-1 gpu-0-timeslice gpu-1-timeslice"},
		"consumable shares of what is not offered": {Policy{MPS: &mps, Consumable: &ConsumableShares{By: ByMemory}}, []GPU{{Minor: 0}}, "gpu-0-mps"},
		"only in shares": {Policy{MPS: &mps}, []GPU{{Minor: 0}, {Minor: 1}}, "gpu-0-mps gpu-1-mps"},
		"everything": {everything, []GPU{halves(0, MIGDisabled, true)},
			"gpu-0 gpu-0-timeslice gpu-0-mps " + halves1 + engine + all + halves1TS},
		"no entire GPU where MIG stays on": {everything, []GPU{halves(0, MIGEnabled, false)}, halves1 + engine + all + halves1TS},
		"no entire GPU beside an administrator's partition": {everything, []GPU{halves(0, MIGEnabled, true, instance(2, 1, 1, 1))},
			"gpu-0-mig-1g1gb-me-2-1 gpu-0-mig-1g1gb-1-0 gpu-0-mig-1g1gb-1-0-timeslice"},
		"no partition where MIG takes a reset":         {everything, []GPU{halves(0, MIGDisabled, false)}, "gpu-0 gpu-0-timeslice gpu-0-mps"},
		"some profiles":                                {Policy{MIG: true, Profiles: []string{"2g.2gb", "1g.1gb"}}, []GPU{halves(0, MIGDisabled, true)}, halves1 + all},
		"no profile":                                   {Policy{MIG: true, Profiles: []string{}}, []GPU{halves(0, MIGDisabled, true)}, ""},
		"profiles that the board lacks":                {Policy{MIG: true, Profiles: []string{"7g.80gb"}, SharedProfiles: map[string]Sharing{"3g.40gb": mps}}, []GPU{halves(0, MIGDisabled, true)}, ""},
		"profiles do not matter without MIG":           {Policy{Profiles: []string{"1g.1gb"}}, []GPU{halves(0, MIGDisabled, true)}, ""},
		"partitions in shares alone":                   {Policy{SharedProfiles: map[string]Sharing{"1g.1gb": slicing}}, []GPU{halves(0, MIGDisabled, true)}, halves1TS},
		"each profile as it is to be shared":           {Policy{SharedProfiles: map[string]Sharing{"1g.1gb": slicing, "2g.2gb": mps}}, []GPU{halves(0, MIGDisabled, true)}, halves1TS + "gpu-0-mig-2g2gb-3-0-mps"},
		"what others made, in shares alone":            {everything, []GPU{halves(0, MIGEnabled, false, instance(1, 0, 1, 1), instance(1, 1, 1, 1))}, "gpu-0-mig-1g1gb-1-0-timeslice gpu-0-mig-1g1gb-1-1-timeslice"},
		"what others made, and none is made":           {Policy{Whole: true, MIG: true, OnlyExisting: true}, []GPU{halves(0, MIGEnabled, true, instance(1, 0, 1, 1)), halves(1, MIGDisabled, true)}, "gpu-1 gpu-0-mig-1g1gb-1-0"},
		"what others made in shares, and none is made": {Policy{OnlyExisting: true, SharedProfiles: map[string]Sharing{"1g.1gb": slicing}}, []GPU{halves(0, MIGEnabled, true, instance(1, 0, 1, 1))}, "gpu-0-mig-1g1gb-1-0-timeslice"},
		"what others made, of a profile not offered":   {Policy{MIG: true, Profiles: []string{"2g.2gb"}}, []GPU{halves(0, MIGEnabled, false, instance(1, 0, 1, 1))}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := names(Shapes(tc.gpus, func(GPU) Policy { return tc.policy }))
			if want := strings.TrimSpace(tc.want); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestEachGPUHasItsOwnPolicy(t *testing.T) {
	shapes := Shapes([]GPU{{Minor: 0}, {Minor: 1}, {Minor: 2}}, func(g GPU) Policy {
		return []Policy{{Whole: true}, {TimeSlicing: &TimeSlicing{Replicas: 2}}, {}}[g.Minor]
	})
	if got, want := names(shapes), "gpu-0 gpu-1-timeslice"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestTheTypeOfAShare(t *testing.T) {
	g := halves(0, MIGEnabled, true)
	for _, tc := range []struct {
		share Share
		want  string
		bytes uint64
	}{
		{Share{Of: Whole{GPU: GPU{MemoryBytes: 5}}, Sharing: TimeSlicing{}}, "timeslice", 5},
		{Share{Of: Whole{GPU: GPU{MemoryBytes: 5}}, Sharing: MPS{}}, "mps", 5},
		{Share{Of: Partition{GPU: g, Profile: g.Profiles[0]}, Sharing: TimeSlicing{}}, "mig-timeslice", 1 << 30},
		{Share{Of: Static{GPU: g, Profile: g.Profiles[2]}, Sharing: MPS{}}, "mig-mps", 2 << 30},
	} {
		if got := tc.share.Type(); got != tc.want {
			t.Errorf("got type %s, want %s", got, tc.want)
		}
		if got := tc.share.MemoryBytes(); got != tc.bytes {
			t.Errorf("%s: got %d bytes, want %d", tc.want, got, tc.bytes)
		}
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
		"none for what is only whole":          {halves(0, MIGDisabled, false), ""},
		"slices, and the engine":               {halves(0, MIGDisabled, true), "memory-slice-0 memory-slice-1 ofa-engines memory"},
		"no engine that is gone":               {halves(0, MIGEnabled, true, instance(2, 1, 1, 1)), ""},
		"one slice keeps two apart":            {halves(0, MIGEnabled, true, instance(1, 0, 1, 1)), "memory-slice-1 memory"},
		"none where all is an administrator's": {halves(0, MIGEnabled, true, instance(3, 0, 2, 2)), ""},
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

// What can meet is counted, and nothing else.
func TestCountersOfAPolicy(t *testing.T) {
	slicing, mps := TimeSlicing{Replicas: 4}, MPS{Clients: 4}
	shared := map[string]Sharing{"1g.1gb": slicing}
	board, bare := halves(0, MIGDisabled, true), GPU{MemoryBytes: 1 << 30}
	for name, tc := range map[string]struct {
		policy Policy
		gpu    GPU
		want   string
	}{
		"one shape of the entire GPU":          {Policy{TimeSlicing: &slicing}, board, ""},
		"two shapes of the entire GPU":         {Policy{TimeSlicing: &slicing, Whole: true}, bare, "gpu memory"},
		"two, and one of them is for several":  {Policy{TimeSlicing: &slicing, Whole: true, Consumable: &ConsumableShares{By: ByNothing}}, bare, "gpu"},
		"three of a board that can be divided": {Policy{TimeSlicing: &slicing, Whole: true, MPS: &mps}, board, "gpu"},
		"shares beside partitions":             {Policy{TimeSlicing: &slicing, MIG: true}, board, "memory-slice-0 memory-slice-1 ofa-engines memory"},
		"places that never meet":               {Policy{MIG: true, Profiles: []string{"1g.1gb"}}, board, ""},
		"places in shares that never meet":     {Policy{SharedProfiles: shared}, board, ""},
		"a place for one claim or in shares":   {Policy{MIG: true, Profiles: []string{"1g.1gb"}, SharedProfiles: shared}, board, "memory-slice-0 memory-slice-1 memory"},
		"of unknown memory":                    {Policy{TimeSlicing: &slicing, Whole: true}, GPU{}, "gpu"},
		"places beside the entire GPU":         {Policy{Whole: true, SharedProfiles: shared}, board, "memory-slice-0 memory-slice-1"},
		"an engine that is there once":         {Policy{SharedProfiles: map[string]Sharing{"1g.1gb+me": mps}}, board, "ofa-engines"},
	} {
		t.Run(name, func(t *testing.T) {
			var names []string
			for _, c := range Counters(Shapes([]GPU{tc.gpu}, func(GPU) Policy { return tc.policy })) {
				names = append(names, c.Name)
			}
			if got := strings.Join(names, " "); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// Quotas charge a claim what a device for it alone takes of the memory: all of it,
// though the GPU offers it several times. Shares of a device take none, or each would be
// charged for all of it.
func TestDevicesForOneClaimTakeTheirMemory(t *testing.T) {
	g := halves(0, MIGEnabled, true, instance(1, 0, 1, 1))
	g.MemoryBytes = 3 << 30
	statics, _ := g.Statics()
	partition := g.Partitions()[0]
	slicing := TimeSlicing{Replicas: 4}
	offered := []Shape{
		Whole{GPU: g}, Share{Of: Whole{GPU: g}, Sharing: slicing},
		partition, Share{Of: partition, Sharing: slicing}, statics[0],
	}
	counters := Counters(offered)
	memory := counters[len(counters)-1]
	if memory.Name != memoryCounter || !memory.Bytes() {
		t.Fatalf("got %+v", counters)
	}
	for i, want := range []uint64{3 << 30, 0, 1 << 30, 0, 0} {
		if got := memory.UsedBy(offered[i]); got != want {
			t.Errorf("%s of type %s uses %d, want %d", offered[i].Name(), offered[i].Type(), got, want)
		}
	}
}

// Where partitions fit beside each other and their memory does not, memory decides: by a counter
// that the whole GPU, which may be looked at beside partitions, takes nothing of.
func TestMemoryThatDecidesIsCountedApart(t *testing.T) {
	g := halves(0, MIGDisabled, true)
	g.MemoryBytes = 5 << 30
	g.Profiles = []Profile{
		{ID: 1, Name: "1g.3gb", Slices: 1, Starts: []int{0, 1}, Size: 1, MemoryBytes: 3 << 30, Engines: Engines{Multiprocessors: 8}},
		{ID: 3, Name: "2g.4gb", Slices: 2, Starts: []int{0}, Size: 2, MemoryBytes: 4 << 30, Engines: Engines{Multiprocessors: 16}},
	}
	offered := Shapes([]GPU{g}, ByDefault)
	counters := Counters(offered)
	at := slices.IndexFunc(counters, func(c Counter) bool { return c.Name == "partition-memory" })
	if at < 0 {
		t.Fatalf("two partitions of 3 GiB are admitted on a GPU that has 4 for partitions: %+v", counters)
	}
	if !counters[at].Bytes() || counters[at].Total != 4<<30 || counters[at].charged {
		t.Errorf("got %+v, want what partitions have at most, in bytes, and for no quota", counters[at])
	}
	for i, want := range []uint64{0, 3 << 30, 3 << 30, 4 << 30} {
		if got := offered[i].Uses(counters[at]); got != want {
			t.Errorf("%s uses %d, want %d", offered[i].Name(), got, want)
		}
	}
}

// A claim may have an administrator's instance as it was offered before the policy
// changed, and then no other may have it as it is offered now.
func TestAnInstanceOfferedInTwoWaysIsCounted(t *testing.T) {
	g := halves(0, MIGEnabled, false, instance(1, 0, 1, 1), instance(1, 1, 1, 1))
	statics, _ := g.Statics()
	first, second := statics[0], statics[1]
	offered := []Shape{first, second, Share{Of: second, Sharing: MPS{Clients: 2}}, Share{Of: second, Sharing: TimeSlicing{Replicas: 2}}}
	counters := Counters(offered)
	if len(counters) != 1 || counters[0].Name != "partition-1" {
		t.Fatalf("got %+v", counters)
	}
	for i, want := range []uint64{0, 1, 1, 1} {
		if got := offered[i].Uses(counters[0]); got != want*counters[0].Total {
			t.Errorf("%s of type %s uses %d, want %d", offered[i].Name(), offered[i].Type(), got, want)
		}
	}
}

func TestAPlacementThatNoBoardHasFitsNowhere(t *testing.T) {
	free := Resources{slices: ^uint64(0), memory: 1 << 40}
	for _, p := range []Profile{{Size: 0}, {Size: -1}, {Size: 65}, {Size: 1 << 40}} {
		if free.Fits(p, 0) {
			t.Errorf("a placement of size %d fits", p.Size)
		}
	}
	for _, start := range []int{-1, 64, 1 << 40} {
		if free.Fits(Profile{Size: 1}, start) {
			t.Errorf("a placement at %d fits", start)
		}
	}
	if !free.Fits(Profile{Size: 64}, 0) || !free.Fits(Profile{Size: 1}, 63) {
		t.Error("the largest placement does not fit")
	}
}

// boxed is a shape of another package, which embeds Whole.
type boxed struct{ Whole }

func (boxed) Form() Form          { return Form{Base: "boxed"} }
func (boxed) MemoryBytes() uint64 { return 7 }

// A shape of the entire GPU takes its counters, also if the whole GPU is not offered.
func TestAShapeThatEmbedsWholeTakesCounters(t *testing.T) {
	g := halves(0, MIGDisabled, true)
	w := boxed{Whole{GPU: g}}
	shapes := []Shape{w}
	for _, p := range g.Partitions() {
		shapes = append(shapes, p)
	}
	decides := 0
	for _, c := range Counters(shapes) {
		switch used := c.UsedBy(w); {
		case c.Name == memoryCounter:
			if used != 7 {
				t.Errorf("a quota is charged %d, want 7", used)
			}
		case used == 1:
			decides++
		}
	}
	if decides == 0 {
		t.Error("no counter keeps the shape from partitions")
	}
	if alone := Counters([]Shape{w, Share{Of: Whole{GPU: g}, Sharing: TimeSlicing{Replicas: 2}}}); len(alone) != 2 || alone[0].UsedBy(w) != 1 {
		t.Errorf("beside shares, without the whole GPU, got %+v", alone)
	}
}
