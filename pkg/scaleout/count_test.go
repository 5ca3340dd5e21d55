package scaleout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
	"github.com/mica-gpu/mica/pkg/scaleout/supply"
)

// One pod more than a replica has room for is added to those that wait, behind all of them: the
// plan finds room for all but this one, and where the count said.
func TestRoomIsWhatThePlanPlaces(t *testing.T) {
	counted := 0
	for seed := range uint64(200) {
		w := replicaWorld(t, seed)
		decision := planned(t, w)
		for i, supply := range decision.Supplies {
			replica := w.Replicas[i]
			if supply.Problem != "" {
				t.Fatalf("seed %d: replica %s: %s", seed, replica.ID, supply.Problem)
			}
			got := placedOf(t, w, nodesOf(decision), replica, supply.Total()+1)
			want := Supply{ID: supply.ID, Free: supply.Free, Coming: supply.Coming, Provisionable: supply.Provisionable}
			if got != want {
				t.Fatalf("seed %d: replica %s (%s): room is %+v, and the plan places %+v", seed, replica.ID, supply.Why, want, got)
			}
			if supply.Why == "" {
				t.Errorf("seed %d: replica %s: nothing says what ends the room %+v", seed, replica.ID, supply)
			}
			counted += supply.Total()
		}
	}
	if counted < 1000 {
		t.Errorf("in all clusters there is room for %d pods only", counted)
	}
}

// placedOf is where a plan puts so many pods like a replica; asked has the nodes of the plan without.
func placedOf(t *testing.T, w *world, asked map[string]int, replica Replica, number int) Supply {
	t.Helper()
	s := w.Snapshot
	s.Replicas = nil
	s.Pending = slices.Clone(s.Pending)
	for i := range number {
		pod := replica.Pod.DeepCopy()
		pod.Name = fmt.Sprintf("more-%d", i)
		pod.UID = types.UID(pod.Name)
		pod.Spec.Priority = ptr.To(int32(-1000))
		s.Pending = append(s.Pending, pod)
	}
	after, err := Plan(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	supply := Supply{ID: replica.ID}
	for _, growth := range after.Growth {
		for i, node := range growth.Nodes {
			more := slices.DeleteFunc(slices.Clone(node.Pods), func(name types.NamespacedName) bool { return !strings.HasPrefix(name.Name, "more-") })
			if i < asked[growth.Group] {
				supply.Coming += len(more)
			} else {
				supply.Provisionable += len(more)
			}
		}
	}
	for _, kind := range after.Kinds {
		for _, pod := range kind.Pods {
			switch {
			case !strings.HasPrefix(pod.Pod.Name, "more-"):
			case pod.Outcome == FitsNode:
				supply.Free++
			case pod.Outcome == FitsStarting:
				supply.Coming++
			}
		}
	}
	return supply
}

// nodesOf are how many nodes are asked for, by group.
func nodesOf(d Decision) map[string]int {
	asked := map[string]int{}
	for _, growth := range d.Growth {
		asked[growth.Group] = len(growth.Nodes)
	}
	return asked
}

func TestSamplesChangeNothingElse(t *testing.T) {
	for seed := range uint64(100) {
		w := replicaWorld(t, seed)
		w.headroom([]string{"warm", "2", "toy"}, options{})
		with := planned(t, w)
		w.Replicas = nil
		without := planned(t, w)
		if len(with.Supplies) == 0 {
			t.Fatalf("seed %d: no room is counted", seed)
		}
		with.Supplies = nil
		if diff := cmp.Diff(without, with, cmpopts.IgnoreTypes(&fit.Pod{})); diff != "" {
			t.Fatalf("seed %d: (-without replicas +with)\n%s", seed, diff)
		}
	}
}

// The order of replicas, and others that are counted besides, change nothing.
func TestEachSampleIsCountedAlone(t *testing.T) {
	for seed := range uint64(100) {
		w := replicaWorld(t, seed)
		w.headroom([]string{"warm", "2", "toy"}, options{})
		all := w.Replicas
		together := planned(t, w).Supplies
		for i := range all {
			w.Replicas = all[i : i+1]
			if diff := cmp.Diff(planned(t, w).Supplies, together[i:i+1]); diff != "" {
				t.Fatalf("seed %d: replica %s: (-alone +among others)\n%s", seed, all[i].ID, diff)
			}
		}
	}
}

// Pods get the devices that headroom keeps, so room is the same with it.
func TestHeadroomTakesNoRoom(t *testing.T) {
	for seed := range uint64(100) {
		w := replicaWorld(t, seed)
		want := planned(t, w).Supplies
		w.headroom([]string{"warm", "2", "toy"}, options{})
		for i, supply := range planned(t, w).Supplies {
			if supply != want[i] {
				t.Errorf("seed %d: with headroom, room is %+v, want %+v", seed, supply, want[i])
			}
		}
	}
}

// Replicas are made of pods that name devices which all nodes share.
func TestDevicesOfTheNetworkAreCountedOnce(t *testing.T) {
	w := newWorld(t)
	w.Classes = append(w.Classes, toyClass())
	for _, line := range []string{
		"group small g6.xlarge max=3 shapes=whole",
		"node n1 g6.xlarge group=small", "node n2 g6.xlarge group=small",
		"template fabric", "request link toy cel=`device.attributes['gpu.nvidia.com'].type == 'link'`",
		"template one", "request gpu gpu.nvidia.com",
		"pods waits 1 templates=fabric", "replica linked templates=fabric", "replica local templates=one",
		"replica both templates=fabric,one",
	} {
		w.line(line)
	}
	w.Groups[0].Size = 2
	fabric := &resourceapi.ResourceSlice{}
	fabric.Name, fabric.UID = "fabric", "fabric"
	fabric.Spec = resourceapi.ResourceSliceSpec{Driver: "gpu.nvidia.com", AllNodes: ptr.To(true),
		Pool: resourceapi.ResourcePool{Name: "fabric", Generation: 1, ResourceSliceCount: 1}}
	for i := range 5 {
		device := toyDevice(fmt.Sprintf("link-%d", i), 1, 0)
		device.Attributes["type"] = resourceapi.DeviceAttribute{StringValue: ptr.To("link")}
		fabric.Spec.Devices = append(fabric.Spec.Devices, device)
	}
	w.Slices = append(w.Slices, fabric)
	decision := planned(t, w)
	supplies := decision.Supplies
	for i, want := range []Supply{
		{ID: "linked", Free: 4},
		{ID: "local", Free: 2, Provisionable: 1},
		{ID: "both", Free: 2, Provisionable: 1},
	} {
		supplies[i].Why = ""
		if supplies[i] != want {
			t.Errorf("room is %+v, want %+v", supplies[i], want)
		}
		if got := placedOf(t, w, nodesOf(decision), w.Replicas[i], want.Total()+1); got != want {
			t.Errorf("the plan places %+v, want %+v", got, want)
		}
	}
}

func TestGrowthWithoutEndIsCountedToTheMost(t *testing.T) {
	w := newWorld(t)
	w.line("group p5 p5.48xlarge")
	w.line("template one")
	w.line("request gpu gpu.nvidia.com")
	w.line("replica a templates=one")
	if got := planned(t, w).Supplies[0]; got.Total() != supply.Max || !strings.Contains(got.Why, "no maximum") {
		t.Errorf("got %+v, want room for %d", got, supply.Max)
	}
}

func TestASampleOfNothingIsAProblem(t *testing.T) {
	w := newWorld(t)
	w.Replicas = []Replica{{ID: "empty"}}
	if supply := planned(t, w).Supplies[0]; supply.ID != "empty" || supply.Problem == "" {
		t.Errorf("got %+v, want a problem", supply)
	}
}

func TestTheSentenceIsBounded(t *testing.T) {
	w := newWorld(t)
	for i := range 40 {
		w.line(fmt.Sprintf("group g%d p5.48xlarge closed=`%s`", i, strings.Repeat("in backoff ", 100)))
	}
	w.line("replica plain")
	supply := planned(t, w).Supplies[0]
	if len(supply.Why) > 1050 || !strings.HasSuffix(supply.Why, "and 36 other groups") {
		t.Errorf("the sentence has %d bytes: %s", len(supply.Why), supply.Why)
	}
}

// Sixteen requests for one of eight GPUs each have more combinations than are tried here.
func TestASampleThatIsTooMuchWorkIsAProblemOfItsOwn(t *testing.T) {
	w := newWorld(t)
	w.line("group p5 p5.48xlarge max=2")
	w.line("template one")
	w.line("request gpu gpu.nvidia.com")
	w.line("template endless")
	for i := range 16 {
		w.line(fmt.Sprintf("request gpu-%d gpu.nvidia.com", i))
	}
	w.line("headroom warm 1 one")
	w.line("replica endless templates=endless")
	w.line("replica one templates=one")
	p := NewPlanner(w.Snapshot)
	p.countSteps = 1 << 16
	supplies, err := p.Supplies(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if supply := supplies[0]; supply.Total() != 0 || !strings.Contains(supply.Problem, "cannot count the room") {
		t.Errorf("got %+v, want that it was too much work", supply)
	}
	if supply := supplies[1]; supply.Total() != 16 || supply.Problem != "" {
		t.Errorf("got %+v, want room for 16", supply)
	}
}

func TestTheEndOfAPlanIsNoProblemOfSamples(t *testing.T) {
	w := newWorld(t)
	w.line("replica plain")
	p := NewPlanner(w.Snapshot)
	if _, err := p.Decide(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := p.Supplies(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that the plan has ended", err)
	}
}
