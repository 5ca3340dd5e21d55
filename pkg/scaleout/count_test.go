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
)

// One pod more than a sample has room for is added to those that wait, behind all of them: the
// plan finds room for all but this one, and where the count said.
func TestRoomIsWhatThePlanPlaces(t *testing.T) {
	counted := 0
	for seed := range uint64(200) {
		w := sampledWorld(t, seed)
		decision := plan(t, w)
		for i, room := range decision.Rooms {
			sample := w.Samples[i]
			if room.Problem != "" {
				t.Fatalf("seed %d: sample %s: %s", seed, sample.ID, room.Problem)
			}
			got := placedOf(t, w, nodesOf(decision), sample, room.Total()+1)
			want := Room{ID: room.ID, Free: room.Free, Coming: room.Coming, Provisionable: room.Provisionable}
			if got != want {
				t.Fatalf("seed %d: sample %s (%s): room is %+v, and the plan places %+v", seed, sample.ID, room.Why, want, got)
			}
			if room.Why == "" {
				t.Errorf("seed %d: sample %s: nothing says what ends the room %+v", seed, sample.ID, room)
			}
			counted += room.Total()
		}
	}
	if counted < 1000 {
		t.Errorf("in all clusters there is room for %d pods only", counted)
	}
}

// placedOf is where a plan puts so many pods like a sample; asked has the nodes of the plan without.
func placedOf(t *testing.T, w *world, asked map[string]int, sample Sample, number int) Room {
	t.Helper()
	s := w.Snapshot
	s.Samples = nil
	s.Pending = slices.Clone(s.Pending)
	for i := range number {
		pod := sample.Pod.DeepCopy()
		pod.Name = fmt.Sprintf("more-%d", i)
		pod.UID = types.UID(pod.Name)
		pod.Spec.Priority = ptr.To(int32(-1000))
		s.Pending = append(s.Pending, pod)
	}
	after, err := Plan(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	room := Room{ID: sample.ID}
	for _, growth := range after.Growth {
		for i, node := range growth.Nodes {
			more := slices.DeleteFunc(slices.Clone(node.Pods), func(name types.NamespacedName) bool { return !strings.HasPrefix(name.Name, "more-") })
			if i < asked[growth.Group] {
				room.Coming += len(more)
			} else {
				room.Provisionable += len(more)
			}
		}
	}
	for _, kind := range after.Kinds {
		for _, pod := range kind.Pods {
			switch {
			case !strings.HasPrefix(pod.Pod.Name, "more-"):
			case pod.Outcome == FitsNode:
				room.Free++
			case pod.Outcome == FitsStarting:
				room.Coming++
			}
		}
	}
	return room
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
		w := sampledWorld(t, seed)
		w.headroom([]string{"warm", "2", "toy"}, options{})
		with := plan(t, w)
		w.Samples = nil
		without := plan(t, w)
		if len(with.Rooms) == 0 {
			t.Fatalf("seed %d: no room is counted", seed)
		}
		with.Rooms = nil
		if diff := cmp.Diff(without, with, cmpopts.IgnoreTypes(&fit.Pod{})); diff != "" {
			t.Fatalf("seed %d: (-without samples +with)\n%s", seed, diff)
		}
	}
}

// The order of samples, and others that are counted besides, change nothing.
func TestEachSampleIsCountedAlone(t *testing.T) {
	for seed := range uint64(100) {
		w := sampledWorld(t, seed)
		w.headroom([]string{"warm", "2", "toy"}, options{})
		all := w.Samples
		together := plan(t, w).Rooms
		for i := range all {
			w.Samples = all[i : i+1]
			if diff := cmp.Diff(plan(t, w).Rooms, together[i:i+1]); diff != "" {
				t.Fatalf("seed %d: sample %s: (-alone +among others)\n%s", seed, all[i].ID, diff)
			}
		}
	}
}

// Headroom keeps devices that a pod gets, so that Kept is a part of Free, and room is no less.
func TestHeadroomTakesNoRoom(t *testing.T) {
	kept := 0
	for seed := range uint64(100) {
		w := sampledWorld(t, seed)
		want := plan(t, w).Rooms
		w.headroom([]string{"warm", "2", "toy"}, options{})
		for i, room := range plan(t, w).Rooms {
			if room.Kept > room.Free {
				t.Errorf("seed %d: sample %s: %d of %d free are kept", seed, room.ID, room.Kept, room.Free)
			}
			kept += room.Kept
			room.Kept = 0
			if room != want[i] {
				t.Errorf("seed %d: with headroom, room is %+v, want %+v", seed, room, want[i])
			}
		}
	}
	if kept == 0 {
		t.Error("no headroom keeps anything in any cluster")
	}
}

// Samples are made of pods that name devices which all nodes share.
func TestDevicesOfTheNetworkAreCountedOnce(t *testing.T) {
	w := newWorld(t)
	w.Classes = append(w.Classes, toyClass())
	for _, line := range []string{
		"group small g6.xlarge max=3 shapes=whole",
		"node n1 g6.xlarge group=small", "node n2 g6.xlarge group=small",
		"template fabric", "request link toy cel=`device.attributes['gpu.nvidia.com'].type == 'link'`",
		"template one", "request gpu gpu.nvidia.com",
		"pods waits 1 templates=fabric", "sample linked templates=fabric", "sample local templates=one",
		"sample both templates=fabric,one",
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
	decision := plan(t, w)
	rooms := decision.Rooms
	for i, want := range []Room{
		{ID: "linked", Free: 4},
		{ID: "local", Free: 2, Provisionable: 1},
		{ID: "both", Free: 2, Provisionable: 1},
	} {
		rooms[i].Why = ""
		if rooms[i] != want {
			t.Errorf("room is %+v, want %+v", rooms[i], want)
		}
		if got := placedOf(t, w, nodesOf(decision), w.Samples[i], want.Total()+1); got != want {
			t.Errorf("the plan places %+v, want %+v", got, want)
		}
	}
}

func TestGrowthWithoutEndIsCountedToTheMost(t *testing.T) {
	w := newWorld(t)
	w.line("group p5 p5.48xlarge")
	w.line("template one")
	w.line("request gpu gpu.nvidia.com")
	w.line("sample a templates=one")
	if room := plan(t, w).Rooms[0]; room.Total() != MostRoom || !strings.Contains(room.Why, "no maximum") {
		t.Errorf("got %+v, want room for %d", room, MostRoom)
	}
}

func TestASampleOfNothingIsAProblem(t *testing.T) {
	w := newWorld(t)
	w.Samples = []Sample{{ID: "empty"}}
	if room := plan(t, w).Rooms[0]; room.ID != "empty" || room.Problem == "" {
		t.Errorf("got %+v, want a problem", room)
	}
}

func TestTheSentenceIsBounded(t *testing.T) {
	w := newWorld(t)
	for i := range 40 {
		w.line(fmt.Sprintf("group g%d p5.48xlarge closed=`%s`", i, strings.Repeat("in backoff ", 100)))
	}
	w.line("sample plain")
	room := plan(t, w).Rooms[0]
	if len(room.Why) > mostReasons*(longestReason+10)+50 || !strings.HasSuffix(room.Why, "and 36 other groups") {
		t.Errorf("the sentence has %d bytes: %s", len(room.Why), room.Why)
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
	w.line("sample endless templates=endless")
	w.line("sample one templates=one")
	p := NewPlanner(w.Snapshot)
	p.plan.countSteps = 1 << 16
	var before []Room
	for range 2 {
		rooms, err := p.Rooms(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if room := rooms[0]; room.Total() != 0 || !strings.Contains(room.Problem, "was not found out") {
			t.Errorf("got %+v, want that it was too much work", room)
		}
		if room := rooms[1]; room.Total() != 16 || room.Problem != "" {
			t.Errorf("got %+v, want room for 16", room)
		}
		if before != nil && !slices.Equal(rooms, before) {
			t.Errorf("counted again, there is room for %+v, not %+v", rooms, before)
		}
		before = rooms
	}
}

func TestTheEndOfAPlanIsNoProblemOfSamples(t *testing.T) {
	w := newWorld(t)
	w.line("sample plain")
	p := NewPlanner(w.Snapshot)
	if _, err := p.Decide(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := p.Rooms(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that the plan has ended", err)
	}
}
