package slice

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/nodes"
)

// The golden files are what users' selectors meet: a change in one is a change
// of the interface.
func TestPublishedDevicesOfReadyMadeMachines(t *testing.T) {
	for _, name := range nodes.Names() {
		t.Run(name, func(t *testing.T) {
			published := pool(t, fixture.Node(t, name))
			fixture.Golden(t, name+".yaml", render(t, published))
			for range 20 {
				if again := pool(t, fixture.Node(t, name)); !reflect.DeepEqual(again, published) {
					t.Fatalf("the same facts gave something else:\n%s", render(t, again))
				}
			}
		})
	}
}

// render writes the slices as they are sent. Of partitions on GPUs of one
// product, only those of the first are shown with all that they have.
func render(t *testing.T, pool resourceslice.Pool) string {
	t.Helper()
	shown := map[string]string{} // PCI address by product and profile
	specs := specs(pool)
	for i := range specs {
		specs[i].Devices = slices.Clone(specs[i].Devices)
		for j, device := range specs[i].Devices {
			profile := device.Attributes[gpu.AttributeProfile].StringValue
			if profile == nil || device.Attributes[gpu.AttributeUUID].StringValue != nil {
				continue
			}
			kind := *device.Attributes[gpu.AttributeProductName].StringValue + *profile
			address := *device.Attributes[deviceattribute.StandardDeviceAttributePCIBusID].StringValue
			if first, seen := shown[kind]; seen && first != address {
				specs[i].Devices[j] = resourceapi.Device{Name: device.Name}
			} else {
				shown[kind] = address
			}
		}
	}
	content, err := yaml.Marshal(specs)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func pool(t testing.TB, node gpu.Node) resourceslice.Pool {
	t.Helper()
	return Pool(node, gpu.Shapes(node.GPUs, gpu.ByDefault), nil)
}

// poolUnder is what is published under one policy for all GPUs.
func poolUnder(policy gpu.Policy, node gpu.Node) resourceslice.Pool {
	return Pool(node, gpu.Shapes(node.GPUs, func(gpu.GPU) gpu.Policy { return policy }), nil)
}

// specs are the slices that are made from the pool, less what names the node.
func specs(pool resourceslice.Pool) []resourceapi.ResourceSliceSpec {
	specs := make([]resourceapi.ResourceSliceSpec, len(pool.Slices))
	for i, slice := range pool.Slices {
		specs[i].Devices, specs[i].SharedCounters = slice.Devices, slice.SharedCounters
	}
	return specs
}

// The API server's own validation is in no module that can be imported; these
// are its rules for what we publish (validation.go of pkg/apis/resource).
func TestPublishedDevicesAreValid(t *testing.T) {
	for _, name := range nodes.Names() {
		t.Run(name, func(t *testing.T) {
			checkPool(t, pool(t, fixture.Node(t, name)))
		})
	}
}

func checkPool(t *testing.T, pool resourceslice.Pool) {
	t.Helper()
	names := map[string]bool{}
	counters := map[string]map[string]resourceapi.Counter{}
	for _, slice := range pool.Slices {
		checkSlice(t, slice)
		for _, set := range slice.SharedCounters {
			if _, twice := counters[set.Name]; twice {
				t.Errorf("counter set %s is published twice", set.Name)
			}
			counters[set.Name] = set.Counters
		}
	}
	for _, slice := range pool.Slices {
		for _, device := range slice.Devices {
			if names[device.Name] {
				t.Errorf("%s is published twice", device.Name)
			}
			names[device.Name] = true
			checkDevice(t, device)
			for _, consumed := range device.ConsumesCounters {
				for name, counter := range consumed.Counters {
					if total, published := counters[consumed.CounterSet][name]; !published || counter.Value.Cmp(total.Value) > 0 {
						t.Errorf("%s consumes %s of the counter %s of %s, which has %s", device.Name, &counter.Value, name, consumed.CounterSet, &total.Value)
					}
				}
			}
		}
	}
}

func checkSlice(t *testing.T, slice resourceslice.Slice) {
	t.Helper()
	limit := resourceapi.ResourceSliceMaxDevices
	for _, device := range slice.Devices {
		if len(device.ConsumesCounters) > resourceapi.ResourceSliceMaxDeviceCounterConsumptionsPerDevice {
			t.Errorf("%s consumes of %d counter sets", device.Name, len(device.ConsumesCounters))
		}
		if len(device.ConsumesCounters) > 0 || len(device.Taints) > 0 {
			limit = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures
		}
	}
	if len(slice.Devices) > limit || len(slice.SharedCounters) > resourceapi.ResourceSliceMaxCounterSets {
		t.Errorf("a slice has %d devices, of at most %d, and %d counter sets", len(slice.Devices), limit, len(slice.SharedCounters))
	}
	if len(slice.Devices) > 0 && len(slice.SharedCounters) > 0 {
		t.Error("a slice has devices and counters")
	}
	for _, set := range slice.SharedCounters {
		if problems := validation.IsDNS1123Label(set.Name); len(problems) > 0 || len(set.Counters) > resourceapi.ResourceSliceMaxCountersPerCounterSet {
			t.Errorf("counter set %q has %d counters and problems %v", set.Name, len(set.Counters), problems)
		}
		for name := range set.Counters {
			if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
				t.Errorf("counter %q: %v", name, problems)
			}
		}
	}
}

// semantic is the strict form of semver.org, version 2.0.0.
var semantic = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$`)

func checkDevice(t *testing.T, device resourceapi.Device) {
	t.Helper()
	if problems := validation.IsDNS1123Label(device.Name); len(problems) > 0 {
		t.Errorf("device name %q: %v", device.Name, problems)
	}
	if n := len(device.Attributes) + len(device.Capacity); n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		t.Errorf("%s has %d attributes and capacities", device.Name, n)
	}
	if device.NodeSelector != nil || device.NodeName != nil || device.AllNodes != nil {
		t.Errorf("%s chooses nodes itself, by %v: its slice does", device.Name, device.NodeSelector)
	}
	for name, attribute := range device.Attributes {
		checkName(t, name)
		values := 0
		if attribute.BoolValue != nil {
			values++
		}
		if attribute.IntValue != nil {
			values++
		}
		if text := attribute.StringValue; text != nil {
			values++
			if *text == "" || len(*text) > resourceapi.DeviceAttributeMaxValueLength {
				t.Errorf("%s: attribute %s is %q", device.Name, name, *text)
			}
		}
		if version := attribute.VersionValue; version != nil {
			values++
			if !semantic.MatchString(*version) || len(*version) > resourceapi.DeviceAttributeMaxValueLength {
				t.Errorf("%s: attribute %s is %q, no semantic version", device.Name, name, *version)
			}
		}
		if values != 1 {
			t.Errorf("%s: attribute %s has %d values", device.Name, name, values)
		}
	}
	for name, capacity := range device.Capacity {
		checkName(t, name)
		if sign := capacity.Value.Sign(); sign < 0 || sign == 0 && name == gpu.CapacityMemory {
			t.Errorf("%s: capacity %s is %s", device.Name, name, &capacity.Value)
		}
		if shared := device.AllowMultipleAllocations != nil; shared != (capacity.RequestPolicy != nil) {
			t.Errorf("%s: may have several claims: %t; capacity %s has the request policy %v", device.Name, shared, name, capacity.RequestPolicy)
		}
		if capacity.RequestPolicy != nil {
			checkRequestPolicy(t, device.Name+": capacity "+string(name), capacity)
		}
	}
}

// checkRequestPolicy has the rules for whole numbers: what a claim can ask for
// reaches from min to the capacity in steps, the default is one of them, and there
// is room for one step at least.
func checkRequestPolicy(t *testing.T, what string, capacity resourceapi.DeviceCapacity) {
	t.Helper()
	policy := capacity.RequestPolicy
	if policy.Default == nil || policy.ValidRange == nil || policy.ValidRange.Min == nil || policy.ValidRange.Max == nil || policy.ValidRange.Step == nil || len(policy.ValidValues) > 0 {
		t.Fatalf("%s: the request policy is %+v", what, policy)
	}
	value, byDefault := capacity.Value.Value(), policy.Default.Value()
	least, most, step := policy.ValidRange.Min.Value(), policy.ValidRange.Max.Value(), policy.ValidRange.Step.Value()
	switch {
	case least < 0 || step < 1 || least+step > value || most != value:
		t.Errorf("%s of %d: %d to %d in steps of %d", what, value, least, most, step)
	case byDefault < least || byDefault > most:
		t.Errorf("%s: the default %d is not within %d to %d", what, byDefault, least, most)
	case (byDefault-least)%step != 0 || (most-least)%step != 0:
		t.Errorf("%s: neither the default %d nor %d may lie between the steps of %d from %d", what, byDefault, most, step, least)
	}
}

var identifier = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

func checkName(t *testing.T, name resourceapi.QualifiedName) {
	t.Helper()
	domain, id, qualified := strings.Cut(string(name), "/")
	if !qualified {
		domain, id = "", domain
	}
	if domain == DefaultDriver {
		t.Errorf("name %q has the driver's own domain, which the helper of Kubernetes 1.38 refuses (kubernetes/kubernetes#142218)", name)
	}
	if !identifier.MatchString(id) || len(id) > resourceapi.DeviceMaxIDLength {
		t.Errorf("name %q is no identifier", name)
	}
	if qualified && (len(validation.IsDNS1123Subdomain(domain)) > 0 || len(domain) > resourceapi.DeviceMaxDomainLength) {
		t.Errorf("name %q is in no domain", name)
	}
}

func TestUnknownFactsAreLeftOut(t *testing.T) {
	bare := device0(t, gpu.Node{}, gpu.GPU{UUID: "GPU-0"})
	var names []string
	for name := range bare.Attributes {
		names = append(names, string(name))
	}
	slices.Sort(names)
	if want := []string{"index", "minor", "type", "uuid"}; !slices.Equal(names, want) {
		t.Errorf("got attributes %q, want %q", names, want)
	}
	if len(bare.Capacity) != 0 {
		t.Errorf("got capacity %v, want none", bare.Capacity)
	}
}

// Zero is a value like any other where it is known.
func TestZeroIsPublished(t *testing.T) {
	device := device0(t, gpu.Node{}, gpu.GPU{NUMANode: ptr.To(0), NVLinkGroup: ptr.To(0), ECCEnabled: ptr.To(false)})
	for _, name := range []resourceapi.QualifiedName{"resource.kubernetes.io/numaNode", "nvlinkGroup", "index", "minor"} {
		if value := device.Attributes[name].IntValue; value == nil || *value != 0 {
			t.Errorf("attribute %s is %v, want 0", name, value)
		}
	}
	if value := device.Attributes["eccEnabled"].BoolValue; value == nil || *value {
		t.Errorf("attribute eccEnabled is %v, want false", value)
	}
}

func TestVersionsBecomeSemantic(t *testing.T) {
	for driver, want := range map[string]string{
		"580.95.05":  "580.95.5", // strict versions have no leading zeros
		"535.183.06": "535.183.6",
		"570.00.01":  "570.0.1",
		"550.54":     "550.54.0",
	} {
		device := device0(t, gpu.Node{DriverVersion: driver, CUDAVersion: "13.0"}, gpu.GPU{ComputeCapability: "9.0"})
		for name, want := range map[resourceapi.QualifiedName]string{
			"driverVersion": want, "cudaDriverVersion": "13.0.0", "cudaComputeCapability": "9.0.0",
		} {
			if got := ptr.Deref(device.Attributes[name].VersionValue, "nothing"); got != want {
				t.Errorf("driver %s: attribute %s is %s, want %s", driver, name, got, want)
			}
		}
	}
}

// An odd version costs a device an attribute and not the node its GPUs.
func TestAVersionThatIsNoneIsLeftOut(t *testing.T) {
	for _, odd := range []string{"R580 (beta)", "", "580.95.05.1.2", "580." + strings.Repeat("9", 80)} {
		device := device0(t, gpu.Node{DriverVersion: odd, CUDAVersion: "13.0"}, gpu.GPU{Minor: 4})
		if got, published := device.Attributes["driverVersion"]; published {
			t.Errorf("%q became %v", odd, got)
		}
		if got := device.Attributes["cudaDriverVersion"].VersionValue; device.Name != "gpu-4" || ptr.Deref(got, "") != "13.0.0" {
			t.Errorf("got device %s with CUDA %v", device.Name, got)
		}
	}
}

func TestLongStringsAreCut(t *testing.T) {
	for name, tc := range map[string]struct{ product, want string }{
		"64 bytes fit":              {strings.Repeat("x", 64), strings.Repeat("x", 64)},
		"65 bytes are cut":          {strings.Repeat("x", 65), strings.Repeat("x", 64)},
		"between characters, never": {strings.Repeat("x", 63) + "€", strings.Repeat("x", 63)},
	} {
		t.Run(name, func(t *testing.T) {
			device := device0(t, gpu.Node{}, gpu.GPU{ProductName: tc.product})
			if got := *device.Attributes["productName"].StringValue; got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func device0(t *testing.T, node gpu.Node, g gpu.GPU) resourceapi.Device {
	t.Helper()
	node.GPUs = []gpu.GPU{g}
	return pool(t, node).Slices[0].Devices[0]
}

func TestSlicesAreSplitAtTheLimit(t *testing.T) {
	for devices, want := range map[int][]int{
		0: {0}, 1: {1}, 127: {127}, 128: {128}, 129: {128, 1}, 256: {128, 128}, 300: {128, 128, 44},
	} {
		t.Run(fmt.Sprint(devices), func(t *testing.T) {
			node := gpu.Node{}
			for minor := range devices {
				node.GPUs = append(node.GPUs, gpu.GPU{Minor: minor})
			}
			var got []int
			next := 0
			for _, slice := range pool(t, node).Slices {
				got = append(got, len(slice.Devices))
				for _, device := range slice.Devices {
					if want := fmt.Sprintf("gpu-%d", next); device.Name != want {
						t.Fatalf("device %s stands where %s should", device.Name, want)
					}
					next++
				}
				if cap(slice.Devices) > len(slice.Devices) && len(slice.Devices) == resourceapi.ResourceSliceMaxDevices {
					t.Error("appending to a full slice would write into the next one")
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("got slices of %v devices, want %v", got, want)
			}
		})
	}
}
