package catalog

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/pkg/gpu"
)

func TestInstancesAreComplete(t *testing.T) {
	names := slices.Sorted(maps.Keys(load().instances))
	if len(names) != 58 {
		t.Errorf("the catalogue has %d instance types that can be predicted, want 58: %q", len(names), names)
	}
	for _, name := range names {
		i, err := InstanceByType(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if i.Type != name || i.VCPUs < 2 || i.MemoryMiB < 8<<10 || i.Board.ProductName == "" || len(i.GPUs) == 0 {
			t.Errorf("%s lacks something: %+v", name, i)
		}
		uuids, addresses := map[string]bool{}, map[string]bool{}
		for index, g := range i.Node("", "").GPUs {
			if g.Index != index || g.MemoryBytes == 0 || uuids[g.UUID] || g.PCIBusID != "" && addresses[g.PCIBusID] {
				t.Errorf("GPU %d of %s is %+v", index, name, g)
			}
			uuids[g.UUID], addresses[g.PCIBusID] = true, true
		}
	}
}

func TestInstanceByType(t *testing.T) {
	for name, want := range map[string]struct {
		product        string
		gpus           int
		memoryMiB      uint64
		mig            gpu.MIGMode
		switchable     bool
		roots          int
		architecture   string
		linked, eccOn  bool
		maxPods, vcpus int
	}{
		"p5.48xlarge":      {"NVIDIA H100 80GB HBM3", 8, 81559, gpu.MIGDisabled, true, 8, "amd64", true, true, 100, 192},
		"p5.4xlarge":       {"NVIDIA H100 80GB HBM3", 1, 81559, gpu.MIGDisabled, true, 1, "amd64", false, true, 118, 16},
		"p4d.24xlarge":     {"NVIDIA A100-SXM4-40GB", 8, 40960, gpu.MIGDisabled, false, 4, "amd64", true, true, 737, 96},
		"p6-b200.48xlarge": {"NVIDIA B200", 8, 183359, gpu.MIGDisabled, true, 4, "amd64", true, true, 198, 192},
		"g4dn.metal":       {"Tesla T4", 8, 15360, gpu.MIGUnsupported, false, 4, "amd64", false, true, 737, 96},
		"g5g.metal":        {"NVIDIA T4G", 2, 16384, gpu.MIGUnsupported, false, 1, "arm64", false, false, 737, 64},
		"g6f.2xlarge":      {"NVIDIA L4-6Q", 1, 6144, gpu.MIGUnsupported, false, 1, "amd64", false, false, 58, 8},
		"g7e.12xlarge":     {"NVIDIA RTX PRO 6000 Blackwell Server Edition", 2, 97887, gpu.MIGDisabled, true, 1, "amd64", false, true, 0, 48},
	} {
		i, err := InstanceByType(name)
		if err != nil {
			t.Error(err)
			continue
		}
		node := i.Node("580.95.05", "13.0")
		g := node.GPUs[len(node.GPUs)-1]
		roots := map[string]bool{}
		for _, g := range node.GPUs {
			roots[g.PCIeRoot] = true
		}
		if g.ProductName != want.product || len(node.GPUs) != want.gpus || g.MemoryBytes != want.memoryMiB<<20 || len(roots) != want.roots {
			t.Errorf("%s has %d %s with %d MiB below %d roots", name, len(node.GPUs), g.ProductName, g.MemoryBytes>>20, len(roots))
		}
		if g.MIG != want.mig || g.MIGSwitchable != want.switchable || (len(g.Profiles) > 0) != (want.mig != gpu.MIGUnsupported) {
			t.Errorf("%s has MIG mode %v, switchable: %t, %d profiles", name, g.MIG, g.MIGSwitchable, len(g.Profiles))
		}
		if (g.NVLinkGroup != nil) != want.linked || (g.ECCEnabled != nil && *g.ECCEnabled) != want.eccOn {
			t.Errorf("%s is in NVLink group %v, ECC %v", name, g.NVLinkGroup, g.ECCEnabled)
		}
		if i.Architecture != want.architecture || i.MaxPods != want.maxPods || i.VCPUs != want.vcpus || node.DriverVersion != "580.95.05" {
			t.Errorf("%s has %d vCPUs of %s, %d pods, driver %s", name, i.VCPUs, i.Architecture, i.MaxPods, node.DriverVersion)
		}
	}
}

func TestInstancesThatAreNotPredicted(t *testing.T) {
	for name, want := range map[string]struct {
		is    error
		says  string
		vcpus int
	}{
		"g7.2xlarge":          {ErrNotPredicted, "RTX PRO 4500", 0},
		"p3.8xlarge":          {ErrNotPredicted, "V100 16 GB", 32},
		"p6-b300.48xlarge":    {ErrNotPredicted, "B300", 192},
		"p6e-gb200.36xlarge":  {ErrNotPredicted, "GB200", 144},
		"g4ad.xlarge":         {ErrNoGPU, "AMD", 0},
		"trn2.48xlarge":       {ErrNoGPU, "Trainium", 0},
		"p5.2xlarge":          {ErrUnknownInstance, "p5.4xlarge, p5.48xlarge", 0},
		"m5.large":            {ErrUnknownInstance, "m5.large", 0},
		"":                    {ErrUnknownInstance, "", 0},
		"p5":                  {ErrUnknownInstance, "p5.4xlarge", 0},
		"p5.48xlarge.extra":   {ErrUnknownInstance, "p5.48xlarge", 0},
		"P5.48XLARGE":         {ErrUnknownInstance, "", 0},
		"g6f.4xlarge\nand\"x": {ErrUnknownInstance, "g6f.4xlarge", 0},
	} {
		i, err := InstanceByType(name)
		if !errors.Is(err, want.is) || !strings.Contains(err.Error(), want.says) {
			t.Errorf("%q: got %v, want %v that says %q", name, err, want.is, want.says)
		}
		if i.VCPUs != want.vcpus || len(i.GPUs) != 0 {
			t.Errorf("%q: got %d vCPUs and %d GPUs", name, i.VCPUs, len(i.GPUs))
		}
	}
}

func TestDecodeRefusesInstances(t *testing.T) {
	for name, test := range map[string]struct{ old, new, want string }{
		"an unknown field":       {"memoryGiB: 16, pods: 29", "memoryGB: 16, pods: 29", "memoryGB"},
		"an unknown board":       {"board: t4-16gb", "board: t4", `no GPU "t4"`},
		"an unknown virtual GPU": {"vgpu: l4-6q", "vgpu: l4-7q", `no GPU "l4-7q"`},
		"no board":               {"  board: t4-16gb\n", "", `no GPU ""`},
		"a size twice":           {"{size: 2xlarge, gpus: 1, vcpus: 8, memoryGiB: 32, pods: 29", "{size: xlarge, gpus: 1, vcpus: 8, memoryGiB: 32, pods: 29", "twice"},
		"no GPUs":                {"{size: xlarge, gpus: 1,", "{size: xlarge, gpus: 0,", "number of GPUs"},
		"no vCPUs":               {"vcpus: 4,", "vcpus: 0,", "vCPUs or memory"},
		"roots for some":         {`roots: ["pci0000:17", "pci0000:17",`, `roots: ["pci0000:17",`, "8 GPUs and 7 roots"},
		"a root that is none":    {`roots: ["pci0000:2f"]`, `roots: ["2f"]`, "no PCI address"},
		"an address for all":     {`"0000:00:1b.0", "0000:00:1c.0", "0000:00:1d.0", "0000:00:1e.0"`, `"0000:00:1b.0"`, "one address"},
		"no source":              {`source: "addresses: nvidia-smi on g4dn.xlarge"`, `source: ""`, "source"},
	} {
		t.Run(name, func(t *testing.T) { checkRefused(t, "instances.yaml", test.old, test.new, test.want) })
	}
}
