package nodes

import (
	"slices"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func TestReadyMadeMachines(t *testing.T) {
	want := map[string]struct {
		gpus    int
		product string
		roots   int
	}{
		"p4d.24xlarge":     {8, "NVIDIA A100-SXM4-40GB", 4},
		"p5.48xlarge":      {8, "NVIDIA H100 80GB HBM3", 8},
		"p5e.48xlarge":     {8, "NVIDIA H200", 8},
		"p6-b200.48xlarge": {8, "NVIDIA B200", 4},
		"g4dn.xlarge":      {1, "Tesla T4", 1},
		"g5.12xlarge":      {4, "NVIDIA A10G", 1},
		"g6.xlarge":        {1, "NVIDIA L4", 1},
		"mixed":            {3, "", 2},
		"pascal":           {1, "Tesla P4", 1},
		"mig-static":       {8, "NVIDIA A100-SXM4-40GB", 4},
	}
	if len(Names()) != len(want) {
		t.Errorf("ready-made machines are %v, want %d", Names(), len(want))
	}
	uuids := map[string]string{}
	for name, w := range want {
		f, err := Load(name)
		if err != nil {
			t.Error(err)
			continue
		}
		m, err := model.Load(f)
		if err != nil {
			t.Error(err)
			continue
		}
		roots := map[string]bool{}
		for _, g := range m.GPUs() {
			roots[g.PCIRoot] = true
			if w.product != "" && g.Board.ProductName != w.product {
				t.Errorf("GPU %d of %s is a %s", g.Index, name, g.Board.ProductName)
			}
			if other, taken := uuids[g.UUID]; taken {
				t.Errorf("%s and %s share the UUID %s", name, other, g.UUID)
			}
			uuids[g.UUID] = name
		}
		if f.Name != name || len(m.GPUs()) != w.gpus || len(roots) != w.roots {
			t.Errorf("%s is named %s and has %d GPUs below %d roots, want %d and %d", name, f.Name, len(m.GPUs()), len(roots), w.gpus, w.roots)
		}
	}
}

// TestSomeMinorsAreNotIndices keeps a machine on which confusing the two shows.
func TestSomeMinorsAreNotIndices(t *testing.T) {
	for _, name := range []string{"p5e.48xlarge", "mixed"} {
		f, err := Load(name)
		if err != nil {
			t.Fatal(err)
		}
		if slices.IsSortedFunc(f.GPUs, func(a, b model.GPU) int { return a.Minor - b.Minor }) {
			t.Errorf("minors of %s follow the order of its GPUs", name)
		}
	}
}

func TestLoadNamesTheChoices(t *testing.T) {
	_, err := Load("p3.2xlarge")
	if err == nil || !strings.Contains(err.Error(), "p5.48xlarge") {
		t.Errorf("got error %v, want one that lists the machines", err)
	}
	if _, err := Load("../model/doc"); err == nil {
		t.Error("a path was loaded")
	}
}
