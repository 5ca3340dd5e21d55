package sample_test

import (
	"testing"

	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
)

// BenchmarkRound is one round of samples of a machine whose GPUs are all cut in seven:
// what the plugin does every other second, without the driver's own time.
func BenchmarkRound(b *testing.B) {
	machine := fixture.Machine(b, fixture.File(b, "p5.48xlarge"))
	library := fixture.Library(b, machine)
	var meters []*nvml.Meter
	for index := range machine.GPUs() {
		if err := machine.SetMIGMode(index, true); err != nil {
			b.Fatal(err)
		}
		for range 7 {
			made, err := machine.CreateInstance(index, "1g.10gb", nil)
			if err != nil {
				b.Fatal(err)
			}
			meters = append(meters, library.Meter(made.ComputeInstances[0].UUID))
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, meter := range meters {
			if _, err := meter.Read(); err != nil {
				b.Fatal(err)
			}
		}
	}
}
