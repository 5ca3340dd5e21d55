package prepare

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/mps"
	"github.com/mica-gpu/mica/test/fixture"
)

// sharedPool has gpu-0 and gpu-1 in each coarse shape, two partitions of gpu-0, one of
// them in shares, a partition of gpu-1 that an administrator has made, and gpu-2, which is
// older than Volta.
func sharedPool() Pool {
	var shapes []gpu.Shape
	for minor := range 2 {
		whole := gpu.Whole{GPU: gpu.GPU{Minor: minor, UUID: uuid(minor), ComputeCapability: "9.0", MemoryBytes: 80 << 30}}
		shapes = append(shapes, whole,
			gpu.Share{Of: whole, Sharing: gpu.TimeSlicing{Replicas: 4, Interval: gpu.MediumInterval}},
			gpu.Share{Of: whole, Sharing: gpu.MPS{Clients: 4}})
	}
	profile := gpu.Profile{ID: 19, Name: "1g.10gb", Size: 1, MemoryBytes: 10 << 30}
	parent := gpu.GPU{UUID: uuid(0), ComputeCapability: "9.0"}
	partition := gpu.Partition{GPU: parent, Profile: profile}
	made := gpu.Static{
		GPU: gpu.GPU{Minor: 1, UUID: uuid(1), ComputeCapability: "9.0"}, Profile: profile,
		Instance: gpu.Instance{ID: 7, Start: 3, Size: 1}, Device: gpu.MIGDevice{UUID: "MIG-1"},
	}
	old := gpu.GPU{Minor: 2, UUID: uuid(2), ProductName: "Tesla P4", ComputeCapability: "6.1"}
	shapes = append(shapes, partition, gpu.Partition{GPU: parent, Profile: profile, Start: 1},
		gpu.Share{Of: partition, Sharing: gpu.TimeSlicing{Replicas: 2, Interval: gpu.DefaultInterval}},
		gpu.Share{Of: partition, Sharing: gpu.MPS{Clients: 2}}, made, gpu.Whole{GPU: old})
	return NewPool(fixture.Driver, fixture.NodeName, shapes)
}

// requesting has a request for each device, named a, b and so on.
func requesting(devices ...string) *resourceapi.ResourceClaim {
	var results []resourceapi.DeviceRequestAllocationResult
	for i, device := range devices {
		results = append(results, fixture.Result(string(rune('a'+i)), device))
	}
	return fixture.Claim("c", results...)
}

func ofClass(config resourceapi.DeviceAllocationConfiguration) resourceapi.DeviceAllocationConfiguration {
	config.Source = resourceapi.AllocationConfigSourceClass
	return config
}

func slicingObject(interval string) string {
	return object("GpuConfig", `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"`+interval+`"}}`)
}

// What each request gets of the configurations: an interval, or a daemon with its limits.
func TestWhatConfigsAskFor(t *testing.T) {
	whole, partition, static := "gpu-0", "gpu-0-mig-1g10gb-19-0", "gpu-1-mig-1g10gb-19-3"
	type configs = []resourceapi.DeviceAllocationConfiguration
	for name, tc := range map[string]struct {
		devices []string
		configs configs
		want    []string
	}{
		"nothing":          {[]string{whole}, nil, []string{"none"}},
		"no sharing":       {[]string{whole}, configs{configured(object("GpuConfig", ""))}, []string{"none"}},
		"an interval":      {[]string{whole, "gpu-1"}, configs{configured(slicingObject("Short"), "b")}, []string{"none", "Short"}},
		"its own interval": {[]string{whole}, configs{configured(slicingObject("Default"))}, []string{"none"}},
		"a partition's time-slices": {
			[]string{partition, static}, configs{configured(object("MigDeviceConfig", `,"sharing":{"strategy":"TimeSlicing"}`))}, []string{"none", "none"},
		},
		"MPS without settings": {[]string{whole}, configs{configured(object("GpuConfig", `,"sharing":{"strategy":"MPS"}`))}, []string{"claim-uid-c-0 0 0"}},
		"MPS of several": {
			[]string{whole, "gpu-1"}, configs{configured(mpsObject(`"defaultActiveThreadPercentage":50,"defaultPinnedDeviceMemoryLimit":"10Gi"`))},
			[]string{"claim-uid-c-0 10240 50", "claim-uid-c-0 10240 50"},
		},
		"limits by position and UUID": {
			[]string{whole, "gpu-1"}, configs{configured(mpsObject(`"defaultPinnedDeviceMemoryLimit":"10Gi","defaultPerDevicePinnedMemoryLimit":{"0":"1Gi","GPU-1":2147483648}`))},
			[]string{"claim-uid-c-0 1024 0", "claim-uid-c-0 2048 0"},
		},
		"the position among those that it is for": {
			[]string{partition, whole, "gpu-1"}, configs{configured(mpsObject(`"defaultPerDevicePinnedMemoryLimit":{"0":"1Gi"}`), "c")},
			[]string{"none", "none", "claim-uid-c-0 1024 0"},
		},
		"whole MiB": {[]string{whole}, configs{configured(mpsObject(`"defaultPinnedDeviceMemoryLimit":"1500Ki"`))}, []string{"claim-uid-c-0 1 0"}},
		"several users": {
			[]string{partition, static}, configs{configured(object("MigDeviceConfig", `,"sharing":{"strategy":"MPS","mpsConfig":{"multiUser":true,"defaultPerDevicePinnedMemoryLimit":{"MIG-1":"5Gi"}}}`))},
			[]string{"claim-uid-c-0 0 0 multi-user", "claim-uid-c-0 5120 0 multi-user"},
		},
		"the later one": {
			[]string{whole, "gpu-1"}, configs{configured(slicingObject("Short")), configured(slicingObject("Long"), "a")}, []string{"Long", "Short"},
		},
		"the later one without sharing": {
			[]string{whole}, configs{configured(slicingObject("Short")), configured(object("GpuConfig", ""))}, []string{"none"},
		},
		"the claim's rather than the class's": {
			[]string{whole, "gpu-1"}, configs{configured(slicingObject("Short"), "a"), ofClass(configured(slicingObject("Long")))}, []string{"Short", "Long"},
		},
		"limits of the class's that are overridden": {
			[]string{whole}, configs{ofClass(configured(mpsObject(`"defaultPerDevicePinnedMemoryLimit":{"0":"1Gi"}`))), configured(slicingObject("Short"))}, []string{"Short"},
		},
		"each kind for its devices": {
			[]string{whole, partition}, configs{configured(mpsObject("")), configured(object("MigDeviceConfig", `,"sharing":{"strategy":"MPS"}`))},
			[]string{"claim-uid-c-0 0 0", "claim-uid-c-1 0 0"},
		},
		"a share that is configured without sharing": {
			[]string{"gpu-0-timeslice", "gpu-1-mps"}, configs{configured(object("GpuConfig", ""))}, []string{"Medium", "gpu-1-mps 0 0 multi-user"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			claim := requesting(tc.devices...)
			claim.Status.Allocation.Devices.Config = tc.configs
			plan, err := assign(claim, sharedPool())
			must(t, err)
			var got []string
			for _, a := range plan {
				got = append(got, sharingText(a))
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func sharingText(a Assignment) string {
	switch {
	case a.served():
		text := fmt.Sprint(a.Client.Daemon, " ", a.Client.MemoryBytes>>20, " ", a.Client.Cores)
		if a.Client.MultiUser {
			text += " multi-user"
		}
		return text
	case a.Interval != "":
		return string(a.Interval)
	}
	return "none"
}

func TestSharingThatIsRefused(t *testing.T) {
	onMIG := func(settings string) string {
		return object("MigDeviceConfig", `,"sharing":{"strategy":"MPS","mpsConfig":{`+settings+`}}`)
	}
	for name, tc := range map[string]struct {
		device string
		config resourceapi.DeviceAllocationConfiguration
		want   []string
	}{
		"sharing of a share": {
			"gpu-0-timeslice", configured(slicingObject("Default"), "a"),
			[]string{`config[0] (FromClaim, requests ["a"]): sharing is set, but request "a" was given a share, gpu-0-timeslice of type timeslice`, "remove sharing"},
		},
		"sharing of a share by all requests": {
			"gpu-0-mps", configured(mpsObject("")), []string{"sharing is set", "gpu-0-mps of type mps", "or name the requests that it is for"},
		},
		"sharing of a partition's share": {
			"gpu-0-mig-1g10gb-19-0-mps", configured(onMIG("")), []string{"sharing is set", "of type mig-mps"},
		},
		"a partition's kind for a share of a GPU": {
			"gpu-0-mps", configured(object("MigDeviceConfig", ""), "a"), []string{"is a MigDeviceConfig", `request "a" was given the device gpu-0-mps of type mps`},
		},
		"an interval of an old GPU": {
			"gpu-2", configured(slicingObject("Short")),
			[]string{`sharing.timeSlicingConfig.interval is Short, but request "a" was given gpu-2, a Tesla P4 (compute capability 6.1)`, "use Default"},
		},
		"MPS of an old GPU": {
			"gpu-2", configured(mpsObject(`"multiUser":true`)), []string{`sharing.strategy is MPS, but request "a" was given gpu-2, a Tesla P4`, "use TimeSlicing"},
		},
		"more memory than the GPU has": {
			"gpu-0", configured(mpsObject(`"defaultPinnedDeviceMemoryLimit":"81Gi"`)),
			[]string{`is 81Gi, which is more than the 80Gi of gpu-0, which request "a" was given: lower it`},
		},
		"more memory than the partition has": {
			"gpu-0-mig-1g10gb-19-0", configured(onMIG(`"defaultPerDevicePinnedMemoryLimit":{"0":"11Gi"}`)), []string{"11Gi", "the 10Gi of gpu-0-mig-1g10gb-19-0"},
		},
		"the UUID of a partition that is not there yet": {
			"gpu-0-mig-1g10gb-19-0", configured(onMIG(`"defaultPerDevicePinnedMemoryLimit":{"MIG-2":"1Gi"}`)), []string{`has the key "MIG-2"`, "use the key 0"},
		},
		"an interval of a partition": {
			"gpu-0-mig-1g10gb-19-0", configured(object("MigDeviceConfig", `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{}}`)),
			[]string{`unknown field "sharing.timeSlicingConfig"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			claim := requesting(tc.device)
			claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{tc.config}
			_, err := assign(claim, sharedPool())
			fixture.Sentence(t, err, append(tc.want, "config[0] (")...)
		})
	}
}

// A container finds one daemon, and one set of limits, in its environment.
func TestARequestIsTheClientOfOneDaemon(t *testing.T) {
	mpsForA := configured(mpsObject(""), "a")
	for name, tc := range map[string]struct {
		devices []string // all of request a
		config  resourceapi.DeviceAllocationConfiguration
		refused bool
	}{
		"two shares with MPS":              {[]string{"gpu-0-mps", "gpu-1-mps"}, resourceapi.DeviceAllocationConfiguration{}, true},
		"two shares of one GPU with MPS":   {[]string{"gpu-0-mps", "gpu-0-mps"}, resourceapi.DeviceAllocationConfiguration{}, true},
		"a share with MPS and a whole GPU": {[]string{"gpu-1", "gpu-0-mps"}, resourceapi.DeviceAllocationConfiguration{}, true},
		"a configured GPU and a partition": {[]string{"gpu-1", "gpu-0-mig-1g10gb-19-0"}, configured(mpsObject("")), true},
		"two GPUs of one configuration":    {[]string{"gpu-0", "gpu-1"}, mpsForA, false},
		"two shares in turn":               {[]string{"gpu-0-timeslice", "gpu-1-timeslice"}, resourceapi.DeviceAllocationConfiguration{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			claim := requesting(tc.devices...)
			claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{tc.config}
			for i := range claim.Status.Allocation.Devices.Results {
				claim.Status.Allocation.Devices.Results[i].Request = "a"
			}
			_, err := assign(claim, sharedPool())
			if !tc.refused && err != nil {
				t.Error(err)
			}
			if tc.refused {
				fixture.Sentence(t, err, `request "a": it was given `+tc.devices[0]+" and "+tc.devices[1],
					"a container can be the client of one MPS daemon only", "ask for each in a request of its own")
			}
		})
	}
	if _, err := assign(requesting("gpu-0-mps", "gpu-1-mps"), sharedPool()); err != nil {
		t.Errorf("two requests: %v", err)
	}
}

// What a share gets is what the scheduler has counted, under either name.
func TestTheLimitsOfAShare(t *testing.T) {
	for want, capacity := range map[string]map[resourceapi.QualifiedName]resource.Quantity{
		"0 0":      nil,
		"2048 0":   {"memory": resource.MustParse("2Gi")},
		"2048 40":  {"gpu.nvidia.com/memory": resource.MustParse("2Gi"), "gpu.nvidia.com/cores": resource.MustParse("40")},
		"0 40":     {"memory": resource.MustParse("0"), "cores": resource.MustParse("40")},
		"0 0 else": {"nic.example.com/memory": resource.MustParse("2Gi")},
	} {
		claim := requesting("gpu-0-mps")
		claim.Status.Allocation.Devices.Results[0].ConsumedCapacity = capacity
		plan, err := assign(claim, sharedPool())
		must(t, err)
		if got := sharingText(plan[0]); got != "gpu-0-mps "+strings.TrimSuffix(want, " else")+" multi-user" {
			t.Errorf("%v: got %q, want %q", capacity, got, want)
		}
	}
}

// A claim's own daemon serves all devices of its configuration, with their limits, and
// goes with the claim.
func TestADaemonOfAClaim(t *testing.T) {
	limits := `"defaultActiveThreadPercentage":50,"defaultPinnedDeviceMemoryLimit":"4Gi","defaultPerDevicePinnedMemoryLimit":{"1":"5Gi"}`
	for kind, devices := range map[string][]string{"GpuConfig": {whole0, "gpu-1"}, "MigDeviceConfig": {small0, elsewhere}} {
		t.Run(kind, func(t *testing.T) {
			r, p := runShares(t)
			claim := r.sharing("c", devices...)
			claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{
				configured(object("VfioDeviceConfig", "")), configured(object(kind, `,"sharing":{"strategy":"MPS","mpsConfig":{`+limits+`}}`)),
			}
			r.api.put(claim)
			want := mps.Daemon{ID: "claim-uid-c-1", ThreadPercentage: 50, MemoryBytes: []uint64{4 << 30, 5 << 30}}
			for i, device := range prepare(t, p, claim) {
				want.Devices = append(want.Devices, device.UUID)
				want.Devices[i] = device.DeviceUUID()
			}
			if got := r.daemons.all(); !reflect.DeepEqual(got, map[string]mps.Daemon{want.ID: want}) {
				t.Errorf("got %+v, want %+v", got, want)
			}
			if spec := read(t, r.spec(claim)); strings.Count(spec, "TEST_MPS=claim-uid-c-1,0,0") != 2 {
				t.Errorf("not each device has the daemon in %s", spec)
			}
			// The record knows all of it, should the claim change or be gone.
			claim.Status.Allocation.Devices.Config = nil
			r.api.remove(claim)
			r.daemons.running = nil
			p = r.startShares(t, nil)
			prepare(t, p, claim)
			if got := slices.Collect(maps.Values(r.daemons.all())); len(got) != 1 || !reflect.DeepEqual(got[0], want) {
				t.Errorf("prepared again: got %+v, want %+v", got, want)
			}
			reconcile(t, p)
			r.expectShares(t, p)
		})
	}
}

// An exclusive claim with an interval leaves the GPU as it was.
func TestAnIntervalOfAClaim(t *testing.T) {
	r, p := runShares(t)
	claim := r.sharing("c", whole0, "gpu-1")
	claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{configured(slicingObject("Medium"), "r1")}
	prepare(t, p, claim)
	r.expectShares(t, p, claim)
	if got := r.intervals.all(); len(got) != 1 || got[r.uuid(1)] != gpu.MediumInterval {
		t.Errorf("got the intervals %v", got)
	}
	unprepare(t, p, claim)
	r.expectShares(t, p)
}

// Claims of one GPU may choose its interval, if all that choose one agree. They cannot choose MPS, as with
// NVIDIA's driver.
func TestSharingOfAGPUForSeveralClaims(t *testing.T) {
	r, p := runShares(t)
	with := func(name string, config resourceapi.DeviceAllocationConfiguration) *resourceapi.ResourceClaim {
		claim := r.sharing(name, several0)
		claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{config}
		r.api.put(claim)
		return claim
	}
	short, same, neutral := with("short", configured(slicingObject("Short"))), with("same", configured(slicingObject("Short"))), r.sharing("neutral", several0)
	for _, claim := range []*resourceapi.ResourceClaim{neutral, short, same} {
		prepare(t, p, claim)
	}
	refused(t, p, with("long", configured(slicingObject("Long"))),
		`request "r0": sharing.timeSlicingConfig.interval is Long, but another claim of gpu-0 has set Short: use the same interval`)
	refused(t, p, with("mps", configured(mpsObject(""))), `request "r0" was given a share, gpu-0 of type gpu`, "remove sharing")
	r.expectShares(t, p, neutral, short, same)
	unprepare(t, p, short)
	r.expectShares(t, p, neutral, same)
	unprepare(t, p, same)
	r.expectShares(t, p, neutral)
}

// The part of the GPU's time that is charged to a claim.
func TestThePartOfAGPUForSeveralClaims(t *testing.T) {
	type amounts = map[resourceapi.QualifiedName]resource.Quantity
	for _, tc := range []struct {
		shares   gpu.ConsumableShares
		consumed amounts
		want     float64
	}{
		{gpu.ConsumableShares{By: gpu.ByCount, Count: 8}, amounts{"memory": resource.MustParse("4Gi"), "shares": resource.MustParse("2")}, 0.25},
		{gpu.ConsumableShares{By: gpu.ByCount, Count: 8}, nil, 0.125},
		{gpu.ConsumableShares{By: gpu.ByMemory}, amounts{"gpu.nvidia.com/memory": resource.MustParse("20Gi")}, 0.25},
		{gpu.ConsumableShares{By: gpu.ByMemory}, nil, 1},
		{gpu.ConsumableShares{By: gpu.ByNothing}, amounts{"memory": resource.MustParse("20Gi")}, 0},
	} {
		whole := gpu.Whole{GPU: gpu.GPU{UUID: uuid(0), MemoryBytes: 80 << 30}}
		claim := requesting("gpu-0")
		result := &claim.Status.Allocation.Devices.Results[0]
		result.ShareID, result.ConsumedCapacity = ptr.To(types.UID("share")), tc.consumed
		plan, err := assign(claim, NewPool(fixture.Driver, fixture.NodeName, []gpu.Shape{gpu.Consumable{Whole: whole, Shares: tc.shares}}))
		must(t, err)
		if plan[0].Part != tc.want {
			t.Errorf("%+v of %v: got the part %v, want %v", tc.consumed, tc.shares, plan[0].Part, tc.want)
		}
	}
}

// A claim that was allocated before the GPU was for several claims has it to itself.
func TestAClaimThatWasAllocatedAloneStaysAlone(t *testing.T) {
	r, p := runShares(t)
	alone := r.sharing("alone", whole0)
	if device := prepare(t, p, alone)[0]; device.Form.Shared() || device.Part != 1 {
		t.Errorf("got %+v", device)
	}
	refused(t, p, r.sharing("next", several0), "claim default/alone (UID uid-alone) still holds on this node")
}

// Until a plugin that has just started knows the policies, it takes each GPU for one claim's.
func TestAClaimThatWasAllocatedAShareIsNeverAlone(t *testing.T) {
	r := newShareRig(t)
	share, offered := r.sharing("share", several0), r.policy
	r.policy = gpu.Policy{Whole: true}
	p := r.startShares(t, nil)
	refused(t, p, share, `request "r0": device gpu-0 was allocated to several claims, but this node offers it to one at a time`, "delete the pod")
	r.expectShares(t, p)
	r.policy = offered
	p = r.startShares(t, nil)
	prepare(t, p, share)
	r.expectShares(t, p, share)
}
