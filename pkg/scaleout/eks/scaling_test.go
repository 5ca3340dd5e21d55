package eks

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
	"github.com/mica-gpu/mica/test/ekssim"
)

// selfManaged is a group that EKS does not know.
func selfManaged(name string) *v1alpha1.GPUNodeGroup {
	group := &v1alpha1.GPUNodeGroup{}
	group.Spec.Provider = v1alpha1.NodeGroupProvider{AutoScalingGroup: name, NodeSelector: map[string]string{"pool": name}}
	return group
}

func TestASelfManagedGroupGrows(t *testing.T) {
	b := newBench(t)
	b.Add(ekssim.Group{Name: "workers", SelfManaged: true, Min: 1, Max: 4, Desired: 1})
	group := selfManaged("workers")
	intent := b.intent(3)
	for range 2 {
		if id, err := b.client.SetDesired(context.Background(), group, intent); err != nil || id != pair.WantedID(intent) {
			t.Fatalf("SetDesired gives %q, %v", id, err)
		}
	}
	want := view.Nodegroup{Min: 1, Max: 4, Desired: 3, DesiredSince: b.clock.Now(), ScalingGroup: "workers"}
	if diff := cmp.Diff(want, b.client.Describe(context.Background(), group), cmpopts.IgnoreFields(view.Nodegroup{}, "AskedAt")); diff != "" {
		t.Errorf("- is expected:\n%s", diff)
	}
	if n := b.count("SetDesiredCapacity"); n != 1 {
		t.Errorf("the size was set %d times, want once", n)
	}
	b.clock.Step(time.Hour)
	if since := b.client.Describe(context.Background(), group).DesiredSince; !since.Equal(want.DesiredSince) {
		t.Errorf("the size is what it is since %s, want %s", since, want.DesiredSince)
	}
}

func TestASelfManagedGroupIsNotSetBeyondItsLimits(t *testing.T) {
	b := newBench(t)
	b.Add(ekssim.Group{Name: "workers", SelfManaged: true, Max: 4, Desired: 3})
	group := selfManaged("workers")
	if _, err := b.client.SetDesired(context.Background(), group, b.intent(5)); err == nil || !strings.Contains(err.Error(), "Auto Scaling group workers cannot grow to 5: its maximum size is 4; raise it") {
		t.Errorf("SetDesired gives %v", err)
	}
	if got := b.client.Describe(context.Background(), group); !strings.Contains(got.Refused, "raise it") {
		t.Errorf("the group is %+v", got)
	}
	b.clock.Step(2 * refusedFor)
	if id, err := b.client.SetDesired(context.Background(), group, b.intent(2)); err != nil || id == "" {
		t.Errorf("SetDesired gives %q, %v", id, err)
	}
	if g, _ := b.Group("workers"); g.Desired != 3 || b.count("SetDesiredCapacity") != 0 {
		t.Errorf("the size is %d after %d calls, want 3 after none", g.Desired, b.count("SetDesiredCapacity"))
	}
}

func TestEC2AutoScalingFails(t *testing.T) {
	for name, test := range map[string]struct {
		fault ekssim.Fault
		group string
		say   string
	}{
		"no such group":       {ekssim.Fault{}, "workrs", "knows no Auto Scaling group workrs in this region: correct spec.provider.autoScalingGroup"},
		"denied":              {ekssim.Denied("DescribeAutoScalingGroups"), "workers", "AWS denies autoscaling:DescribeAutoScalingGroups to the controller: allow it in the IAM policy"},
		"throttled":           {ekssim.Fault{Status: 400, Code: "Throttling", Message: "Rate exceeded"}, "workers", "EC2 Auto Scaling throttles calls of this account"},
		"no answer":           {ekssim.Fault{Hangup: true}, "workers", "EC2 Auto Scaling could not be asked"},
		"expired credentials": {ekssim.Fault{Status: 403, Code: "ExpiredToken"}, "workers", "does not accept the controller's credentials"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.Add(ekssim.Group{Name: "workers", SelfManaged: true, Max: 4})
			if test.fault != (ekssim.Fault{}) {
				b.Inject(test.fault)
			}
			if got := b.client.Describe(context.Background(), selfManaged(test.group)); got.Err == nil || !strings.Contains(got.Err.Error(), test.say) {
				t.Errorf("the error is %v, want that it says %q", got.Err, test.say)
			}
		})
	}
}

// instances gives a group machines.
func (b *bench) instances(group string, desired int, of map[string]string) {
	b.Change(group, func(g *ekssim.Group) { g.Desired, g.Instances = desired, of })
}

func TestAnInstanceEndsOnce(t *testing.T) {
	for name, group := range map[string]*v1alpha1.GPUNodeGroup{"of EKS": groupOf(gpus, ""), "self-managed": selfManaged("workers")} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.Add(ekssim.Group{Name: "workers", SelfManaged: true, Max: 4})
			at := gpus.Nodegroup
			if group.Spec.Provider.EKS == nil {
				at = "workers"
			}
			b.instances(at, 2, map[string]string{"i-1": "InService", "i-2": "InService"})
			end := func() error { return b.client.End(context.Background(), group, "i-1") }
			b.Inject(ekssim.Fault{Operation: "TerminateInstanceInAutoScalingGroup", Times: 1, Latency: time.Nanosecond, Status: 500, Code: "InternalFailure"})
			for range 3 {
				if err := end(); err != nil {
					t.Fatal(err)
				}
			}
			b.restart(t) // it has forgotten that the instance terminates
			if err := end(); err != nil {
				t.Fatal(err)
			}
			calls := len(b.Calls())
			if err := end(); err != nil || len(b.Calls()) != calls {
				t.Errorf("what terminates is asked about again: %v", err)
			}
			if g, _ := b.Group(at); g.Desired != 1 || g.Instances["i-1"] != "Terminating" || g.Instances["i-2"] != "InService" {
				t.Errorf("the group has a size of %d and %v, want 1, and i-2", g.Desired, g.Instances)
			}
		})
	}
}

func TestAnEndIsRefused(t *testing.T) {
	const terminate = "TerminateInstanceInAutoScalingGroup"
	for name, test := range map[string]struct {
		fault   ekssim.Fault
		change  func(*ekssim.Group)
		refused bool
		say     string
	}{
		"denied":              {ekssim.Denied(terminate), nil, true, "AWS denies autoscaling:" + terminate},
		"nothing may be seen": {ekssim.Denied("DescribeAutoScalingGroups"), nil, true, "AWS denies autoscaling:DescribeAutoScalingGroups"},
		"at min":              {ekssim.Fault{}, func(g *ekssim.Group) { g.Min = 1 }, true, "min size constraint"},
		"detached":            {ekssim.Fault{}, func(g *ekssim.Group) { delete(g.Instances, "i-1") }, true, "was detached"},
		"another activity":    {ekssim.Fault{Operation: terminate, Status: 400, Code: "ScalingActivityInProgress"}, nil, false, "ScalingActivityInProgress"},
		"AWS is broken":       {ekssim.Broken(terminate, 0), nil, false, "Internal error"},
		"no answer":           {ekssim.Fault{Operation: terminate, Hangup: true}, nil, false, "could not be asked"},
		"throttled":           {ekssim.Fault{Status: 400, Code: "Throttling"}, nil, false, "throttles"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.instances(gpus.Nodegroup, 1, map[string]string{"i-1": "InService"})
			if test.change != nil {
				b.Change(gpus.Nodegroup, test.change)
			}
			if test.fault != (ekssim.Fault{}) {
				b.Inject(test.fault)
			}
			err := b.client.End(context.Background(), groupOf(gpus, ""), "i-1")
			if err == nil || !strings.Contains(err.Error(), test.say) || errors.Is(err, pair.ErrRefused) != test.refused {
				t.Errorf("End gives %v; want that it says %q, and is refused: %t", err, test.say, test.refused)
			}
			if left := name == "detached"; errors.Is(err, pair.ErrNotInGroup) != left {
				t.Errorf("End gives %v; want that the instance is not in the group: %t", err, left)
			}
		})
	}
}

// If zones are out of balance, AWS ends a machine of its choice, which may be in use.
func TestAnEndThatWouldBeBalancedIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*ekssim.Group)
		refused bool
	}{
		"one zone": {func(g *ekssim.Group) { g.Zones = []string{"a"} }, false},
		"two zones, three machines in the other": {func(g *ekssim.Group) {
			g.InstanceZones = map[string]string{"i-2": "b", "i-3": "b", "i-4": "b"}
		}, true},
		"two zones, one machine more in the other": {func(g *ekssim.Group) {
			g.InstanceZones = map[string]string{"i-2": "b", "i-3": "b"}
		}, false},
		"one of two that are left terminates": {func(g *ekssim.Group) {
			g.InstanceZones = map[string]string{"i-2": "b", "i-3": "b"}
			g.Instances["i-4"] = "Terminating:Wait"
		}, true},
		"a zone without machines": {func(g *ekssim.Group) { g.Zones = append(g.Zones, "c") }, true},
		"suspended": {func(g *ekssim.Group) {
			g.InstanceZones = map[string]string{"i-2": "b", "i-3": "b", "i-4": "b"}
			g.Suspended = []string{"HealthCheck", "AZRebalance"}
		}, false},
		"something else suspended": {func(g *ekssim.Group) {
			g.InstanceZones = map[string]string{"i-2": "b", "i-3": "b", "i-4": "b"}
			g.Suspended = []string{"HealthCheck"}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.instances(gpus.Nodegroup, 4, map[string]string{"i-1": "InService", "i-2": "InService", "i-3": "InService", "i-4": "InService"})
			b.Change(gpus.Nodegroup, func(g *ekssim.Group) {
				g.Max, g.Zones = 4, []string{"a", "b"}
				test.change(g)
			})
			err := b.client.End(context.Background(), groupOf(gpus, ""), "i-1")
			if errors.Is(err, pair.ErrRefused) != test.refused || !test.refused && err != nil || test.refused && !strings.Contains(err.Error(), "suspend its process AZRebalance") {
				t.Errorf("End gives %v, want that it is refused: %t", err, test.refused)
			}
			if g, _ := b.Group(gpus.Nodegroup); (g.Instances["i-1"] == "Terminating") == test.refused {
				t.Errorf("the instance is %s", g.Instances["i-1"])
			}
		})
	}
}

func TestALargeGroupIsReadWhole(t *testing.T) {
	b := newBench(t)
	all := map[string]string{"i-1": "InService"}
	for i := range 16 {
		all[fmt.Sprintf("i-%d-%s", i, strings.Repeat("x", maxAnswer>>4))] = "InService"
	}
	b.instances(gpus.Nodegroup, len(all), all)
	b.Change(gpus.Nodegroup, func(g *ekssim.Group) { g.Max = len(all) })
	if err := b.client.End(context.Background(), groupOf(gpus, ""), "i-1"); err != nil {
		t.Errorf("End gives %.300v", err)
	}
	b.client.scaling = autoscaling.New(b.client.scaling.Options(), func(o *autoscaling.Options) { o.HTTPClient = bounded{http.DefaultClient, maxAnswer} })
	const say = "the answer has more than 1048576 bytes, too many for one of EC2 Auto Scaling"
	if err := b.client.End(context.Background(), groupOf(gpus, ""), "i-2"); err == nil || !strings.Contains(err.Error(), say) || errors.Is(err, pair.ErrRefused) {
		t.Errorf("End gives %.300v, want that it says %q", err, say)
	}
}
