// Package docs owns the tests that hold the documentation against the code.
package docs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

// The reference shows a slice with the first device, a partition, and a device of each
// kind in shares, the whole GPU for several claims without its attributes.
func TestTheDevicesInTheAttributeReferenceArePublished(t *testing.T) {
	blocks := documentedBlocks(t)
	if len(blocks) != 6 {
		t.Fatalf("docs/reference/attributes.md has %d blocks of YAML, want a slice, a partition and four devices in shares", len(blocks))
	}
	var documented resourceapi.ResourceSlice
	if err := yaml.UnmarshalStrict([]byte(blocks[0]), &documented); err != nil {
		t.Fatalf("the first block of YAML in docs/reference/attributes.md: %v", err)
	}
	var partition resourceapi.Device
	if err := yaml.UnmarshalStrict([]byte(blocks[1]), &partition); err != nil {
		t.Fatalf("the second block of YAML in docs/reference/attributes.md: %v", err)
	}
	pool := publishedPool(t, "p5.48xlarge", gpu.ByDefault)
	if got, want := documented.Spec.Pool.ResourceSliceCount, int64(len(pool.Slices)); got != want {
		t.Errorf("docs/reference/attributes.md shows a pool of %d slices, and %d are published", got, want)
	}
	published := devicesOf(pool)
	expectPublished(t, published, append(documented.Spec.Devices, partition)...)
	if documented.Spec.Devices[0].Name != published[0].Name {
		t.Errorf("docs/reference/attributes.md shows %s as the first device, which is %s", documented.Spec.Devices[0].Name, published[0].Name)
	}
	inShares := devicesOf(publishedPool(t, "p5.48xlarge", everyShape))
	forSeveral := devicesOf(publishedPool(t, "p5.48xlarge", func(gpu.GPU) gpu.Policy {
		return gpu.Policy{Whole: true, Consumable: &gpu.ConsumableShares{By: gpu.ByCount, Count: 4}}
	}))
	for _, block := range blocks[2:] {
		var device resourceapi.Device
		if err := yaml.UnmarshalStrict([]byte(block), &device); err != nil {
			t.Fatalf("a block of YAML in docs/reference/attributes.md: %v", err)
		}
		if device.Attributes == nil {
			device.Attributes = documented.Spec.Devices[0].Attributes
			expectPublished(t, forSeveral, device)
			continue
		}
		expectPublished(t, inShares, device)
	}
}

// everyShape offers GPUs, and all of their partitions, for one claim and in four shares.
func everyShape(g gpu.GPU) gpu.Policy {
	slicing := gpu.TimeSlicing{Replicas: 4, Interval: gpu.DefaultInterval}
	policy := gpu.Policy{Whole: true, MIG: true, TimeSlicing: &slicing, MPS: &gpu.MPS{Clients: 4}, SharedProfiles: map[string]gpu.Sharing{}}
	for _, p := range g.Profiles {
		policy.SharedProfiles[p.Name] = slicing
	}
	return policy
}

// expectPublished wants documented devices to be what is published of the name.
func expectPublished(t *testing.T, published []resourceapi.Device, documented ...resourceapi.Device) {
	t.Helper()
	for _, device := range documented {
		i := slices.IndexFunc(published, func(d resourceapi.Device) bool { return d.Name == device.Name })
		if i < 0 {
			t.Errorf("docs/reference/attributes.md shows %s, which is not published", device.Name)
			continue
		}
		if got, want := render(t, device), render(t, published[i]); got != want {
			t.Errorf("docs/reference/attributes.md shows\n%s\nand this is published:\n%s", got, want)
		}
	}
}

func documentedBlocks(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "attributes.md"))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, rest := range strings.Split(string(text), "```yaml\n")[1:] {
		block, _, _ := strings.Cut(rest, "```\n")
		blocks = append(blocks, block)
	}
	return blocks
}

func devicesOf(pool resourceslice.Pool) []resourceapi.Device {
	var devices []resourceapi.Device
	for _, slice := range pool.Slices {
		devices = append(devices, slice.Devices...)
	}
	return devices
}

func publishedPool(t *testing.T, machine string, policy func(gpu.GPU) gpu.Policy) resourceslice.Pool {
	t.Helper()
	node := fixture.Node(t, machine)
	return slice.Pool(node, gpu.Shapes(node.GPUs, policy), nil)
}

func render(t *testing.T, device resourceapi.Device) string {
	t.Helper()
	text, err := yaml.Marshal(device)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
