package publish

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

// The tests of the publisher run in a bubble of time: minutes pass at once, and
// only when nothing is left to do. Where the library's controller creates slices,
// less than its mutation cache's minute may pass: it looks again exactly when
// that is over, and for ever where time stands still meanwhile.
const settled = 45 * time.Second

// publishing runs the publisher with the real slice controller until the test ends.
func publishing(t *testing.T, api *apiServer, first resourceslice.DriverResources) *Publisher {
	t.Helper()
	p, _ := background(t, api, first)
	synctest.Wait()
	return p
}

// background runs the publisher until stop is called, or the test ends.
func background(t *testing.T, api *apiServer, first resourceslice.DriverResources) (p *Publisher, stop func()) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	p = New(api, fixture.Driver, fixture.NodeName)
	p.Set(first)
	return p, fixture.Background(ctx, t, p.Run)
}

// once publishes for a while, as the process before does.
func once(t *testing.T, api *apiServer, what resourceslice.DriverResources) {
	t.Helper()
	_, stop := background(t, api, what)
	after(5 * time.Second)
	stop()
}

// after lets that much time pass.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func check(t *testing.T, api *apiServer, p *Publisher, want resourceslice.DriverResources, writes ...string) {
	t.Helper()
	if err := api.has(t, want); err != nil {
		t.Error(err)
	}
	if !p.Published() {
		t.Error("the publisher does not know that the devices are published")
	}
	if got := api.writes(); !slices.Equal(got, writes) {
		t.Errorf("got writes %q, want %q", got, writes)
	}
}

// Without counters, nothing but a shape a GPU would keep claims apart.
func TestAnAPIServerWithoutCountersGetsNoPartitions(t *testing.T) {
	all := partitionable(t, 8)
	want := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		fixture.NodeName: slice.WithoutCounters(all.Pools[fixture.NodeName]),
	}}
	if devices := want.Pools[fixture.NodeName].Slices[0].Devices; len(devices) != 8 || devices[0].ConsumesCounters != nil {
		t.Fatalf("got %v", devices)
	}
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer()
		api.dropCounters()
		p := publishing(t, api, all)
		check(t, api, p, want, "create")
		after(10 * time.Minute)
		check(t, api, p, want, "create")
	})
}

// An API server that is upgraded gets them later.
func TestPartitionsAreOfferedOnceTheAPIServerKeepsCounters(t *testing.T) {
	all := partitionable(t, 2)
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer()
		api.dropTrials(1)
		p := publishing(t, api, all)
		if err := api.has(t, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
			fixture.NodeName: slice.WithoutCounters(all.Pools[fixture.NodeName]),
		}}); err != nil {
			t.Error(err)
		}
		after(retryRefused + resyncRetry)
		after(settled)
		if err := api.has(t, all); err != nil || !p.Published() {
			t.Errorf("published %t: %v", p.Published(), err)
		}
	})
}

// An API server may lose a feature while the plugin runs. What it drops is not a failed
// publication, and is left out.
func TestFieldsThatTheAPIServerBeginsToDropAreLeftOut(t *testing.T) {
	all := partitionable(t, 2)
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer()
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		p := New(api, fixture.Driver, fixture.NodeName)
		p.Set(all)
		fixture.Background(klog.NewContext(t.Context(), logger), t, p.Run)
		after(5 * time.Second)
		check(t, api, p, all, "create", "create", "create", "create")
		api.dropCounters()
		fewer := partitionable(t, 1)
		p.Set(fewer)
		after(settled)
		if err := api.has(t, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
			fixture.NodeName: slice.WithoutCounters(fewer.Pools[fixture.NodeName]),
		}}); err != nil || !p.Published() {
			t.Errorf("published %t: %v", p.Published(), err)
		}
		logs := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		if strings.Contains(logs, "Cannot publish") || !strings.Contains(logs, "DRAPartitionableDevices") {
			t.Errorf("the log is\n%s", logs)
		}
	})
}

// Claims may have partitions of a GPU that would be published as if it were free.
func TestSlicesStayUntilTheFeaturesAreKnown(t *testing.T) {
	all := partitionable(t, 2)
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer()
		once(t, api, all)
		writes := api.writes()
		api.failTrials(3)
		p := publishing(t, api, all) // the plugin's restart
		after(2 * retryUnanswered)
		if p.Published() {
			t.Error("it is published although the API server has not told whether it keeps it")
		}
		after(2 * retryUnanswered)
		check(t, api, p, all, writes...)
	})
}

// What is not to be published any more needs no answer.
func TestTheAPIServerIsNotAskedForWhatIsNotOfferedAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer()
		api.dropTrials(2)
		p := publishing(t, api, partitionable(t, 2))
		p.Set(resources(t, 2))
		after(2 * retryRefused) // time passes only while the publisher waits
		if err := api.has(t, resources(t, 2)); err != nil || !p.Published() {
			t.Errorf("published %t: %v", p.Published(), err)
		}
	})
}

func TestTheFirstPublicationIsAtOnceAndLasts(t *testing.T) {
	for name, want := range map[string]resourceslice.DriverResources{
		"one slice": resources(t, 8), "more slices than ten": resources(t, 1500), "two slices of counters": partitionable(t, 9),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newAPIServer()
				p := publishing(t, api, want)
				creates := slices.Repeat([]string{"create"}, len(want.Pools[fixture.NodeName].Slices))
				check(t, api, p, want, creates...)
				// The library's controller finds what it would have written itself.
				after(10 * time.Minute)
				check(t, api, p, want, creates...)
			})
		})
	}
}

func TestFirstSlicesAreTheControllers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := partitionable(t, 9)
		ours := newAPIServer()
		publishing(t, ours, want)

		theirs := newAPIServer()
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		controller, err := resourceslice.StartController(ctx, resourceslice.Options{
			DriverName: fixture.Driver, KubeClient: theirs, Resources: &want,
			Owner: &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: fixture.NodeName, UID: "uid-node"},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer controller.Stop()
		defer cancel()
		after(settled)
		got, their := ours.Slices(t), theirs.Slices(t)
		if len(got) != len(their) {
			t.Fatalf("got %d slices, the controller makes %d", len(got), len(their))
		}
		for i := range got {
			if got[i].GenerateName != their[i].GenerateName || len(got[i].OwnerReferences) != 1 ||
				!apiequality.Semantic.DeepEqual(got[i].OwnerReferences, their[i].OwnerReferences) ||
				!apiequality.Semantic.DeepEqual(got[i].Spec, their[i].Spec) {
				t.Errorf("slice %d:\ngot            %+v\nthe controller %+v", i, got[i], their[i])
			}
		}
	})
}

func TestSlicesOfTheProcessBefore(t *testing.T) {
	for name, tc := range map[string]struct {
		gpus   int
		writes []string
	}{"as they are to be": {8, []string{"create"}}, "of another state": {7, []string{"create", "update"}}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, want := newAPIServer(), resources(t, tc.gpus)
				once(t, api, resources(t, 8))
				p := publishing(t, api, want)
				after(5 * time.Second)
				check(t, api, p, want, tc.writes...)
				after(10 * time.Minute)
				check(t, api, p, want, tc.writes...)
			})
		})
	}
}

func TestANewStateIsPublishedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer()
		p := publishing(t, api, resources(t, 8))
		after(5 * time.Second)
		want := resources(t, 6)
		p.Set(want)
		synctest.Wait()
		check(t, api, p, want, "create", "update")
	})
}

// kubelet removes the node's slices when it starts; the controller alone would
// leave the node without GPUs for 30 s.
func TestSlicesThatKubeletWipedAreBackSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, want := newAPIServer(), resources(t, 130)
		p := publishing(t, api, want)
		after(time.Minute)
		api.wipe(t)
		if took := untilPublished(t, api, p, want); took > 2*time.Second {
			t.Errorf("the slices were back after %s", took)
		}
		after(settled)
		if err := api.has(t, want); err != nil || !p.Published() {
			t.Errorf("published: %t, %v", p.Published(), err)
		}
		// The library may find the first slice gone before the second one is, and try to
		// update that in vain.
		creates := slices.DeleteFunc(api.writes(), func(verb string) bool { return verb == "update" })
		if want := slices.Repeat([]string{"create"}, 4); !slices.Equal(creates, want) {
			t.Errorf("got writes %q, want %q", creates, want)
		}
	})
}

// untilPublished returns how long it takes until the slices are there.
func untilPublished(t *testing.T, api *apiServer, p *Publisher, want resourceslice.DriverResources) time.Duration {
	t.Helper()
	start := time.Now()
	for api.has(t, want) != nil || !p.Published() {
		if time.Since(start) > settled {
			t.Fatalf("published: %t, %v", p.Published(), api.has(t, want))
		}
		after(10 * time.Millisecond)
	}
	return time.Since(start)
}

func TestWipedSlicesAreNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, want := newAPIServer(), resources(t, 8)
		p := publishing(t, api, want)
		after(time.Minute)
		api.Fail("create", "resourceslices", 3)
		api.wipe(t)
		synctest.Wait()
		if p.Published() {
			t.Error("the publisher says that the devices are published")
		}
		untilPublished(t, api, p, want)
	})
}

func TestAnIdleNodeHasNoSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer()
		p := publishing(t, api, resourceslice.DriverResources{})
		check(t, api, p, resourceslice.DriverResources{})
		want := resources(t, 8) // the driver is loaded
		p.Set(want)
		after(2 * time.Second)
		check(t, api, p, want, "create")
	})
}

func TestAnIdleNodeLosesTheSlicesOfItsPast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer()
		once(t, api, resources(t, 8))
		p := publishing(t, api, resourceslice.DriverResources{})
		after(2 * time.Second) // pods would be scheduled to GPUs that are gone
		// It may be deleted once more before its deletion is seen.
		deletes := slices.Repeat([]string{"delete"}, min(2, len(api.writes())-1))
		check(t, api, p, resourceslice.DriverResources{}, append([]string{"create"}, deletes...)...)
		after(time.Minute)
		check(t, api, p, resourceslice.DriverResources{}, append([]string{"create"}, deletes...)...)
	})
}

// The fake does not select by field, so this tests the selector itself.
func TestTheSelector(t *testing.T) {
	for name, tc := range map[string]struct {
		driver, node string
		want         bool
	}{
		"ours":             {fixture.Driver, fixture.NodeName, true},
		"another node's":   {fixture.Driver, "node-b", false},
		"another driver's": {"nic.example.com", fixture.NodeName, false},
	} {
		set := fields.Set{"spec.driver": tc.driver, "spec.nodeName": tc.node}
		if got := sliceSelector(fixture.Driver, fixture.NodeName).Matches(set); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

func TestANodeThatDoesNotExist(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	p := New(newAPIServer(), fixture.Driver, "node-z")
	fixture.Sentence(t, p.Run(ctx), `node "node-z" does not exist in this cluster`, "set --node-name to the name under which kubelet registered this node")
}

// Slices of the node that was deleted are garbage; a restart mends it.
func TestANodeThatIsDeletedAndCreatedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer()
		_, ctx := ktesting.NewTestContext(t)
		p := New(api, fixture.Driver, fixture.NodeName)
		p.Set(resources(t, 8))
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		after(time.Minute)
		nodes := api.CoreV1().Nodes()
		if err := nodes.Delete(ctx, fixture.NodeName, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		api.wipe(t)
		after(10 * time.Second)
		select {
		case err := <-done:
			t.Fatalf("the publisher ended with %v while there is no node", err)
		default:
		}
		again := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fixture.NodeName, UID: "uid-again"}}
		if _, err := nodes.Create(ctx, again, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		api.wipe(t) // the garbage collector
		after(10 * time.Second)
		select {
		case err := <-done:
			fixture.Sentence(t, err, `node "node-a" was deleted and created again`, "uid-node", "uid-again", "restart the plugin")
		default:
			t.Fatal("the publisher goes on")
		}
	})
}

func TestTheAPIServerIsAwayAtFirst(t *testing.T) {
	for name, fail := range map[string]struct {
		verb, resource string
		times          int64
	}{
		"reading the node":   {"get", "nodes", 5},
		"listing slices":     {"list", "resourceslices", 4},
		"watching slices":    {"watch", "resourceslices", 3},
		"creating the slice": {"create", "resourceslices", 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, want := newAPIServer(), resources(t, 8)
				api.Fail(fail.verb, fail.resource, fail.times)
				p := publishing(t, api, want)
				untilPublished(t, api, p, want)
				if got := len(api.Slices(t)); got != 1 {
					t.Errorf("got %d slices", got)
				}
			})
		})
	}
}

// Two plugin versions with different devices must not fight at the API
// server's speed: each update makes the scheduler look at all waiting pods.
func TestAnotherWriterOfTheSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, want := newAPIServer(), resources(t, 8)
		p := publishing(t, api, want)
		ctx, cancel := context.WithCancel(t.Context())
		rival := make(chan int)
		go func() { rival <- rewrite(ctx, t, api, resources(t, 7)) }()
		const minutes = 10
		after(minutes * time.Minute)
		cancel()
		theirs := <-rival
		ours := len(api.writes()) - theirs
		// One in five seconds, the first few, and the controller's one in 30 s.
		if most := minutes*60/5 + 5 + minutes*2 + 1; ours > most {
			t.Errorf("got %d writes of ours in %d minutes, want at most %d", ours, minutes, most)
		}
		after(time.Minute)
		if err := api.has(t, want); err != nil || !p.Published() {
			t.Errorf("after the rival's end: %v, published: %t", err, p.Published())
		}
	})
}

// rewrite writes its own devices whenever it finds others. It returns how often.
func rewrite(ctx context.Context, t *testing.T, api *apiServer, own resourceslice.DriverResources) int {
	writes := 0
	for {
		select {
		case <-ctx.Done():
			return writes
		case <-time.After(50 * time.Millisecond):
		}
		if api.has(t, own) == nil {
			continue
		}
		for _, item := range api.Slices(t) {
			item.Spec.Devices = own.Pools[fixture.NodeName].Slices[0].Devices
			if _, err := api.ResourceV1().ResourceSlices().Update(context.Background(), &item, metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
			writes++
		}
	}
}

func TestMatches(t *testing.T) {
	want := partitionable(t, 2) // whole GPUs, partitions of each, counters
	published := func(change func(all []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
		p := New(nil, fixture.Driver, fixture.NodeName)
		var all []*resourceapi.ResourceSlice
		pool := want.Pools[fixture.NodeName]
		for i := range pool.Slices {
			slice := p.firstSlice("uid-node", fixture.NodeName, pool, i).DeepCopy()
			slice.Name = slice.GenerateName + "x"
			all = append(all, slice)
		}
		return change(all)
	}
	type list = []*resourceapi.ResourceSlice
	for name, tc := range map[string]struct {
		change func(list) list
		want   bool
	}{
		"as desired":          {func(all list) list { return all }, true},
		"listed in any order": {func(all list) list { slices.Reverse(all); return all }, true},
		"a later generation": {func(all list) list {
			for _, slice := range all {
				slice.Spec.Pool.Generation = 3
			}
			return all
		}, true},
		"two generations": {func(all list) list { all[1].Spec.Pool.Generation = 2; return all }, false},
		"one missing":     {func(all list) list { return all[:1] }, false},
		"none":            {func(list) list { return nil }, false},
		"one too many":    {func(all list) list { return append(all, all[1]) }, false},
		"another pool": {func(all list) list {
			extra := all[0].DeepCopy()
			extra.Spec.Pool.Name = "old"
			return append(all, extra)
		}, false},
		"another count":       {func(all list) list { all[1].Spec.Pool.ResourceSliceCount = 3; return all }, false},
		"a device less":       {func(all list) list { all[1].Spec.Devices = all[1].Spec.Devices[1:]; return all }, false},
		"devices in disorder": {func(all list) list { slices.Reverse(all[0].Spec.Devices); return all }, false},
		"slices in disorder": {func(all list) list {
			all[0].Spec.Devices, all[1].Spec.Devices = all[1].Spec.Devices, all[0].Spec.Devices
			return all
		}, false},
		"another counter": {func(all list) list {
			counters := all[3].Spec.SharedCounters[0].Counters
			delete(counters, "memory-slice-0")
			return all
		}, false},
		"no counters":       {func(all list) list { all[3].Spec.SharedCounters = nil; return all }, false},
		"another attribute": {func(all list) list { delete(all[0].Spec.Devices[0].Attributes, "index"); return all }, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := matches(published(tc.change), want); got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
}
