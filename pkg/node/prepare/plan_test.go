package prepare

import (
	"fmt"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/test/fixture"
)

func TestPlan(t *testing.T) {
	preparer := newRig(t).start(t)
	offered := pool()
	offered.Shapes["gpu-3"] = gpu.Consumable{Whole: gpu.Whole{GPU: offered.Shapes["gpu-3"].Physical()}, Shares: gpu.ConsumableShares{By: gpu.ByNothing}}
	share := types.UID("share-1")
	shared := fixture.Result("r", "gpu-3")
	shared.ShareID = &share
	for name, tc := range map[string]struct {
		results   []resourceapi.DeviceRequestAllocationResult
		want      []string // request, device and what is special
		exclusive []string
	}{
		"several devices keep their order": {
			results:   []resourceapi.DeviceRequestAllocationResult{fixture.Result("r", "gpu-5"), fixture.Result("r", "gpu-1"), fixture.Result("r", "gpu-3")},
			want:      []string{"r gpu-5", "r gpu-1", "r gpu-3"},
			exclusive: []string{"GPU-1", "GPU-3", "GPU-5"},
		},
		"the alternative that was chosen": {
			results:   []resourceapi.DeviceRequestAllocationResult{fixture.Result("a/big", "gpu-0")},
			want:      []string{"a/big gpu-0"},
			exclusive: []string{"GPU-0"},
		},
		"other drivers' results": {
			results: []resourceapi.DeviceRequestAllocationResult{
				{Request: "nic", Driver: "nic.example.com", Pool: fixture.NodeName, Device: "gpu-0"},
				fixture.Result("r", "gpu-2"),
				{Request: "disk", Driver: "disk.example.com", Pool: "elsewhere", Device: "disk-9"},
			},
			want:      []string{"r gpu-2"},
			exclusive: []string{"GPU-2"},
		},
		"admin access holds nothing": {
			results:   []resourceapi.DeviceRequestAllocationResult{fixture.AdminResult("look", "gpu-0"), fixture.Result("r", "gpu-1")},
			want:      []string{"look gpu-0 admin", "r gpu-1"},
			exclusive: []string{"GPU-1"},
		},
		"a share": {
			results:   []resourceapi.DeviceRequestAllocationResult{shared},
			want:      []string{"r gpu-3 share-1"},
			exclusive: []string{"GPU-3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			record, err := preparer.plan(fixture.Claim("c", tc.results...), offered)
			must(t, err)
			if claim := nameOf(record); claim.String() != "default/c" || record.ClaimUID != "uid-c" {
				t.Errorf("the plan is for claim %s (%s)", claim, record.ClaimUID)
			}
			var got []string
			for _, d := range record.Devices {
				text := fmt.Sprint(d.Request, " ", d.Device)
				if d.AdminAccess {
					text += " admin"
				}
				if d.ShareID != "" {
					text += " " + d.ShareID
				}
				got = append(got, text)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got assignments %q, want %q", got, tc.want)
			}
			if exclusive := gpusHeldBy(record); !slices.Equal(exclusive, tc.exclusive) {
				t.Errorf("got exclusive GPUs %q, want %q", exclusive, tc.exclusive)
			}
		})
	}
}

func TestARefusedPlanSaysWhy(t *testing.T) {
	elsewhere := fixture.Result("r", "gpu-0")
	elsewhere.Pool = "node-b"
	unallocated := fixture.Claim("c")
	unallocated.Status.Allocation = nil
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		pool  Pool
		want  []string
	}{
		"a claim that is not allocated": {
			claim: unallocated, pool: pool(),
			want: []string{"the claim is not allocated", "after the scheduler has placed a pod"},
		},
		"another node's pool": {
			claim: fixture.Claim("c", elsewhere), pool: pool(),
			want: []string{`request "r": device gpu-0 was allocated from pool "node-b"`, `this node's pool is "node-a"`, "delete the pod so that it is scheduled again"},
		},
		"a device that is not there": {
			claim: fixture.Claim("c", fixture.Result("r", "gpu-0"), fixture.Result("s", "gpu-9")), pool: pool(),
			want: []string{`request "s": device gpu-9 is not on this node, which offers gpu-0, gpu-1`, "if its GPU was lost, repair it; else delete the pod"},
		},
		"any device of a node without GPUs": {
			claim: fixture.Claim("c", fixture.Result("r", "gpu-0")), pool: NewPool(fixture.Driver, fixture.NodeName, nil),
			want: []string{"which offers none"},
		},
		"a claim of other drivers alone": {
			claim: fixture.Claim("c", resourceapi.DeviceRequestAllocationResult{Request: "nic", Driver: "nic.example.com"}), pool: pool(),
			want: []string{"the claim has no device of driver gpu.nvidia.com"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := assign(tc.claim, tc.pool)
			fixture.Sentence(t, err, tc.want...)
		})
	}
}

// Nothing but the steps of a shape says how it is undone.
func TestStepsOfAnUnknownShapeAreRefused(t *testing.T) {
	steps, err := Assignment{Shape: toyShape{gpu.Whole{}}}.steps()
	fixture.Sentence(t, err, `the shape "toy" is unknown to this version of the plugin`)
	if steps != nil {
		t.Errorf("got %v", steps)
	}
}
