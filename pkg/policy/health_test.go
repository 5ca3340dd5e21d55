package policy

import (
	"maps"
	"testing"

	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

func TestWhatFaultsMean(t *testing.T) {
	for text, want := range map[string]slice.FaultEffects{
		"shapes: {whole: {}}": nil,
		"{shapes: {whole: {}}, health: [{condition: gpu-lost, effect: NoExecute}, {condition: memory, effect: None}]}": {
			health.Lost: "NoExecute", health.Memory: "None",
		},
	} {
		compiled, err := Compile(fixture.Driver, parse(t, text))
		if err != nil {
			t.Fatal(err)
		}
		if got := compiled.Resets(); len(got) > 0 {
			t.Errorf("%s: GPUs are reset because of %v", text, got)
		}
		if got := compiled.Faults(); !maps.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
	compiled, err := Compile(fixture.Driver, parse(t, "{shapes: {whole: {}}, health: [{condition: xid, effect: None, recovery: Reset}, {condition: memory, effect: None, recovery: None}]}"))
	if err != nil {
		t.Fatal(err)
	}
	if got := compiled.Resets(); !maps.Equal(got, health.ConditionSet{health.XID: true}) {
		t.Errorf("GPUs are reset because of %v", got)
	}
	for text, words := range map[string][]string{
		"{shapes: {whole: {}}, health: [{condition: gpu-lost, effect: None, recovery: Reset}]}": {"spec.health[0].recovery", "no reset reaches a GPU", "leave Reset out"},
		"{shapes: {whole: {}}, health: [{condition: xid, effect: None, recovery: Reboot}]}":     {"spec.health[0].recovery", `"Reboot" is unknown`},
		"{shapes: {whole: {}}, health: [{condition: fever, effect: None}]}":                     {"GPUPolicy p, spec.health[0].condition", `"fever" is unknown`, "gpu-lost"},
		"{shapes: {whole: {}}, health: [{condition: xid, effect: NoExecutes}]}":                 {"GPUPolicy p, spec.health[0].effect", "NoExecute"},
	} {
		_, err := Compile(fixture.Driver, parse(t, text))
		fixture.Sentence(t, err, words...)
	}
}
