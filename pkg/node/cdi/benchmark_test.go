package cdi

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/test/fixture"
)

// libraries is about how many a real driver has for containers, with graphics.
const libraries = 45

// BenchmarkClaim measures what the specification of a claim for a whole GPU costs, of a
// driver that was seen before.
func BenchmarkClaim(b *testing.B) {
	file := fixture.File(b, "g6.xlarge")
	machine := fixture.Machine(b, file)
	root := fixture.DriverRoot(b, machine)
	for i := range libraries {
		path := filepath.Join(root, "usr/lib64", fmt.Sprintf("libnvidia-part%d.so.%s", i, file.DriverVersion))
		must(b, os.WriteFile(path, nil, 0o755))
	}
	edits := NewEdits(fixture.Library(b, machine), Roots{Host: "/", Local: root, Hook: "/plugins/nvidia-cdi-hook", Batch: true}, klog.Background())
	directory, err := NewDirectory(b.TempDir(), "gpu.nvidia.com")
	must(b, err)
	uuid := machine.GPUs()[0].UUID
	b.Run("common", func(b *testing.B) {
		for b.Loop() {
			if _, err := edits.Common(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("write", func(b *testing.B) {
		common, err := edits.Common()
		must(b, err)
		own, err := edits.GPU(uuid)
		must(b, err)
		claim := Claim{UID: "uid", NamespacedName: types.NamespacedName{Namespace: "default", Name: "claim"}}
		for b.Loop() {
			must(b, directory.Write(claim, common, []Device{{Name: "gpu-0", Edits: own}}))
		}
		b.ReportMetric(float64(len(common.Mounts)), "mounts")
	})
}
