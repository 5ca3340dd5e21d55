package gpu

import "testing"

func TestPolicyIsCheckedAgainstAGPU(t *testing.T) {
	hopper := GPU{ProductName: "NVIDIA H100 80GB HBM3", ComputeCapability: "9.0"}
	blackwell := GPU{ProductName: "NVIDIA GB300", ComputeCapability: "10.3"}
	pascal := GPU{ProductName: "Tesla P40", ComputeCapability: "6.1"}
	volta := GPU{ProductName: "Tesla V100-SXM2-16GB", ComputeCapability: "7.0"}
	unknown := GPU{ProductName: "Graphics Device"}
	slicing := func(replicas int, interval Interval) *TimeSlicing {
		return &TimeSlicing{Replicas: replicas, Interval: interval}
	}
	shared := func(sharing Sharing) map[string]Sharing { return map[string]Sharing{"1g.10gb": sharing} }
	for name, tc := range map[string]struct {
		policy Policy
		gpu    GPU
		want   string
	}{
		"the default":        {ByDefault(hopper), hopper, ""},
		"nothing":            {Policy{}, pascal, ""},
		"the fewest shares":  {Policy{TimeSlicing: slicing(2, LongInterval), MPS: &MPS{Clients: 2}}, hopper, ""},
		"the most shares":    {Policy{TimeSlicing: slicing(128, ShortInterval), MPS: &MPS{Clients: 48}}, blackwell, ""},
		"one replica":        {Policy{TimeSlicing: slicing(1, DefaultInterval)}, hopper, "timeSlice: replicas is 1: choose 2 to 128"},
		"too many replicas":  {Policy{TimeSlicing: slicing(129, DefaultInterval)}, hopper, "timeSlice: replicas is 129: choose 2 to 128"},
		"no interval":        {Policy{TimeSlicing: slicing(2, "")}, hopper, `timeSlice: interval is "": choose one of ["Default" "Short" "Medium" "Long"]`},
		"a strange interval": {Policy{TimeSlicing: slicing(2, "short")}, hopper, `timeSlice: interval is "short": choose one of ["Default" "Short" "Medium" "Long"]`},
		"the interval of an old GPU": {Policy{TimeSlicing: slicing(2, ShortInterval)}, pascal,
			"timeSlice: interval is Short, but a Tesla P40 (compute capability 6.1) has none that could be set: use Default, or keep the policy from this GPU"},
		"an old GPU at its own interval":           {Policy{TimeSlicing: slicing(2, DefaultInterval)}, pascal, ""},
		"a GPU with an unknown compute capability": {Policy{TimeSlicing: slicing(2, ShortInterval), MPS: &MPS{Clients: 2}}, unknown, ""},
		"the first GPU with both":                  {Policy{TimeSlicing: slicing(2, ShortInterval), MPS: &MPS{Clients: 2}}, volta, ""},
		"any number of claims":                     {Policy{Whole: true, Consumable: &ConsumableShares{By: ByNothing}}, pascal, ""},
		"one consumable share": {Policy{Whole: true, Consumable: &ConsumableShares{By: ByCount, Count: 1}}, pascal,
			"whole.consumableShares: the number is 1: choose 2 to 1024"},
		"too many consumable shares": {Policy{Whole: true, Consumable: &ConsumableShares{By: ByCount, Count: 1025}}, pascal,
			"whole.consumableShares: the number is 1025: choose 2 to 1024"},
		"the memory of a GPU": {Policy{Whole: true, Consumable: &ConsumableShares{By: ByMemory}}, GPU{MemoryBytes: 2 << 20}, ""},
		"the memory of a GPU that has the system's": {Policy{Whole: true, Consumable: &ConsumableShares{By: ByMemory}}, GPU{ProductName: "NVIDIA GB10"},
			"whole.consumableShares: it is memory, but NVML reports none for NVIDIA GB10: choose unlimited or a number, or keep the policy from this GPU"},
		"a strange limit": {Policy{Whole: true, Consumable: &ConsumableShares{By: "disabled"}}, pascal,
			`whole.consumableShares: "disabled" is unknown: choose unlimited, memory or a number`},
		"one client":       {Policy{MPS: &MPS{Clients: 1}}, hopper, "mps: clients is 1: choose 2 to 48"},
		"too many clients": {Policy{MPS: &MPS{Clients: 49}}, hopper, "mps: clients is 49: choose 2 to 48"},
		"an old GPU with MPS": {Policy{MPS: &MPS{Clients: 2}}, pascal,
			"mps: a Tesla P40 (compute capability 6.1) cannot limit the clients of MPS: keep the policy from this GPU"},
		"partitions in shares": {Policy{SharedProfiles: shared(TimeSlicing{Replicas: 2, Interval: DefaultInterval})}, hopper, ""},
		"partitions in too many shares": {Policy{SharedProfiles: shared(MPS{Clients: 50})}, hopper,
			"mig.shared of profile 1g.10gb: clients is 50: choose 2 to 48"},
		"the interval of a partition": {Policy{SharedProfiles: shared(TimeSlicing{Replicas: 2, Interval: LongInterval})}, hopper,
			"mig.shared of profile 1g.10gb: the interval of a MIG partition cannot be set: remove interval"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := tc.policy.Check(tc.gpu); err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

// Of several mistakes the same one is reported every time, so that its Event is
// not repeated in other words.
func TestTheSameMistakeIsReportedEveryTime(t *testing.T) {
	policy := Policy{SharedProfiles: map[string]Sharing{"1g.10gb": MPS{}, "2g.20gb": MPS{}, "3g.40gb": MPS{}}}
	for range 50 {
		if got, want := policy.Check(GPU{}).Error(), "mig.shared of profile 1g.10gb: clients is 0: choose 2 to 48"; got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}
