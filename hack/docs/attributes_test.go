// Package docs owns the tests that hold the documentation against the code.
package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/nvml"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/nodes"
)

func TestTheSliceInTheAttributeReferenceIsPublished(t *testing.T) {
	documented := documentedSlice(t)
	published := publishedDevices(t, "p5.48xlarge")
	if len(documented.Spec.Devices) != 1 {
		t.Fatalf("docs/attributes.md shows %d devices, want one", len(documented.Spec.Devices))
	}
	got, want := render(t, documented.Spec.Devices[0]), render(t, published[0])
	if got != want {
		t.Errorf("docs/attributes.md shows\n%s\nand this is published:\n%s", got, want)
	}
}

func documentedSlice(t *testing.T) resourceapi.ResourceSlice {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "attributes.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, block, found := strings.Cut(string(text), "```yaml\n")
	block, _, closed := strings.Cut(block, "```\n")
	if !found || !closed {
		t.Fatal("docs/attributes.md has no block of YAML")
	}
	var documented resourceapi.ResourceSlice
	if err := yaml.UnmarshalStrict([]byte(block), &documented); err != nil {
		t.Fatalf("the block of YAML in docs/attributes.md: %v", err)
	}
	return documented
}

func publishedDevices(t *testing.T, machine string) []resourceapi.Device {
	t.Helper()
	file, err := nodes.Load(machine)
	if err != nil {
		t.Fatal(err)
	}
	simulated, err := model.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	library, err := nvml.New(simulated.NewSession())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := library.Close(); err != nil {
			t.Error(err)
		}
	}()
	node, unreadable, err := library.Discover(sysfs(file))
	if err != nil || len(unreadable) != 0 {
		t.Fatalf("%v, %v", unreadable, err)
	}
	pool, err := slice.Pool(node, gpu.Shapes(node.GPUs))
	if err != nil {
		t.Fatal(err)
	}
	return pool.Slices[0].Devices
}

// sysfs has of /sys what locality is read from.
func sysfs(file model.File) fs.ReadLinkFS {
	tree := fstest.MapFS{}
	for _, g := range file.GPUs {
		dir := path.Join(append([]string{"devices", g.PCIRoot}, append(g.PCIBridges, g.PCIBusID)...)...)
		tree[path.Join(dir, "numa_node")] = &fstest.MapFile{Data: fmt.Appendln(nil, g.NUMANode)}
		tree[path.Join("bus/pci/devices", g.PCIBusID)] = &fstest.MapFile{Data: []byte("../../../" + dir), Mode: fs.ModeSymlink}
	}
	return tree
}

func render(t *testing.T, device resourceapi.Device) string {
	t.Helper()
	text, err := yaml.Marshal(device)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
