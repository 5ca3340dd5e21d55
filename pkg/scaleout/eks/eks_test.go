package eks

import (
	"context"
	"errors"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
	"github.com/mica-gpu/mica/test/ekssim"
)

// takes is how long an update runs at the simulated EKS.
const takes = 20 * time.Second

var gpus = v1alpha1.EKSNodegroup{Cluster: "one", Nodegroup: "gpus"}

// bench is a client with an EKS of its own, and a clock for both.
type bench struct {
	*ekssim.Server
	client *Client
	url    string
	clock  *testingclock.FakeClock // the server may still read it when a call without an answer has returned
}

func newBench(t *testing.T) *bench {
	t.Helper()
	environment(t)
	b := &bench{clock: testingclock.NewFakeClock(time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC))}
	b.Server = ekssim.New(ekssim.Options{Cluster: gpus.Cluster, UpdateTakes: takes, Now: b.clock.Now})
	b.Add(ekssim.Group{Name: gpus.Nodegroup, Max: 5, InstanceTypes: []string{"p5.48xlarge"}})
	server := httptest.NewServer(b)
	t.Cleanup(server.Close)
	b.url = server.URL
	b.restart(t)
	return b
}

// restart makes a client that remembers nothing.
func (b *bench) restart(t *testing.T) {
	t.Helper()
	t.Setenv("AWS_ENDPOINT_URL_AUTO_SCALING", b.url)
	c, err := New(context.Background(), Options{Endpoint: b.url, Now: b.clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	b.client = c
}

// environment keeps the tests from the machine's own AWS account.
func environment(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "none")
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID":           "AKIDEXAMPLE",
		"AWS_SECRET_ACCESS_KEY":       "example",
		"AWS_SESSION_TOKEN":           "",
		"AWS_REGION":                  "ap-northeast-2",
		"AWS_CONFIG_FILE":             nowhere,
		"AWS_SHARED_CREDENTIALS_FILE": nowhere,
		"AWS_EC2_METADATA_DISABLED":   "true",
	} {
		t.Setenv(name, value)
	}
}

// count is how often an operation was called.
func (b *bench) count(operation string) int {
	n := 0
	for _, c := range b.Calls() {
		if c.Operation == operation {
			n++
		}
	}
	return n
}

func (b *bench) intent(target int) v1alpha1.InFlight {
	return v1alpha1.InFlight{ID: pair.IntentID, Target: int32(target), Nodes: int32(target), Since: metav1.NewTime(b.clock.Now())}
}

// groupOf is a group with an update of ours.
func groupOf(nodegroup v1alpha1.EKSNodegroup, update string) *v1alpha1.GPUNodeGroup {
	group := &v1alpha1.GPUNodeGroup{}
	group.Spec.Provider.EKS = &nodegroup
	group.Status.InFlight = []v1alpha1.InFlight{{ID: update, Target: 1}}
	return group
}

func (b *bench) describe(update string) view.Nodegroup {
	return b.client.Describe(context.Background(), groupOf(gpus, update))
}

func (b *bench) set(intent v1alpha1.InFlight) (string, error) {
	return b.client.SetDesired(context.Background(), groupOf(gpus, ""), intent)
}

func (b *bench) desired(t *testing.T) int {
	t.Helper()
	g, found := b.Group(gpus.Nodegroup)
	if !found {
		t.Fatal("the node group is gone")
	}
	return g.Desired
}

func TestAnUpdateIsFollowedToItsEnd(t *testing.T) {
	b := newBench(t)
	id, err := b.set(b.intent(2))
	if err != nil || id == "" {
		t.Fatalf("SetDesired gives %q, %v", id, err)
	}
	want := view.Nodegroup{Max: 5, DesiredSince: b.clock.Now(), Status: "UPDATING", Update: id, ScalingGroup: "eks-gpus-0"}
	if diff := cmp.Diff(want, b.describe(id), cmpopts.IgnoreFields(view.Nodegroup{}, "AskedAt")); diff != "" {
		t.Errorf("during the update (-want +got):\n%s", diff)
	}
	b.clock.Step(takes)
	want = view.Nodegroup{Max: 5, Desired: 2, DesiredSince: b.clock.Now(), Status: "ACTIVE", ScalingGroup: "eks-gpus-0"}
	if diff := cmp.Diff(want, b.describe(id), cmpopts.IgnoreFields(view.Nodegroup{}, "AskedAt")); diff != "" {
		t.Errorf("after the update (-want +got):\n%s", diff)
	}
}

func TestTheSameIntentIsOneUpdate(t *testing.T) {
	b := newBench(t)
	intent := b.intent(1)
	b.Inject(ekssim.Fault{Operation: "UpdateNodegroupConfig", Times: attempts, Hangup: true})
	if id, err := b.set(intent); err == nil {
		t.Fatalf("SetDesired gives %q though EKS never answered", id)
	}
	b.restart(t)
	first, err := b.set(intent)
	if err != nil || first == "" {
		t.Fatalf("SetDesired gives %q, %v", first, err)
	}
	b.clock.Step(takes)
	// Another client makes the group smaller: the old intent must not undo that.
	b.Settle()
	b.Change(gpus.Nodegroup, func(g *ekssim.Group) { g.Desired = 0 })
	if again, err := b.set(intent); err != nil || again != first {
		t.Errorf("the same intent gives %q, %v, want %q", again, err, first)
	}
	if n, d := b.Updates(gpus.Nodegroup), b.desired(t); n != 1 || d != 0 {
		t.Errorf("%d updates and a desired size of %d, want 1 and 0", n, d)
	}
	if other, err := b.set(b.intent(1)); err != nil || other == first {
		t.Errorf("a later intent gives %q, %v, want another update than %q", other, err, first)
	}
}

func TestWhileEKSUpdatesTheScalingGroupIsSet(t *testing.T) {
	b := newBench(t)
	b.Change(gpus.Nodegroup, func(g *ekssim.Group) { g.Status = "UPDATING" })
	intent := b.intent(2)
	for range 2 {
		if id, err := b.set(intent); id != pair.WantedID(intent) || err != nil {
			t.Errorf("SetDesired during an update gives %q, %v", id, err)
		}
		b.clock.Step(fresh + time.Second)
	}
	if d, n := b.desired(t), b.count("SetDesiredCapacity"); d != 2 || n != 1 {
		t.Errorf("the size is %d after %d calls, want 2 after 1", d, n)
	}
	if got := b.describe(""); got.Status != "UPDATING" || got.Update != "" || got.ScalingGroup != "eks-gpus-0" || got.ScalingRefused != "" {
		t.Errorf("an update of others is shown as %+v", got)
	}
}

func TestWithoutARightToTheScalingGroupTheUpdateIsWaitedFor(t *testing.T) {
	b := newBench(t)
	b.Change(gpus.Nodegroup, func(g *ekssim.Group) { g.Status = "UPDATING" })
	b.Inject(ekssim.Denied("SetDesiredCapacity"))
	intent := b.intent(2)
	set := func() (string, error) { return b.set(intent) }
	if id, err := set(); id != "" || err == nil {
		t.Errorf("SetDesired gives %q, %v, want what is denied", id, err)
	}
	if got := b.describe(""); !strings.Contains(got.ScalingRefused, "AWS denies autoscaling:SetDesiredCapacity to the controller: allow it") || got.Refused != "" {
		t.Errorf("the group is %+v", got)
	}
	b.clock.Step(fresh + time.Second)
	if id, err := set(); id != "" || err != nil || b.count("SetDesiredCapacity") != 1 {
		t.Errorf("SetDesired gives %q, %v, after %d calls of EC2 Auto Scaling, want neither, and 1", id, err, b.count("SetDesiredCapacity"))
	}
	b.Change(gpus.Nodegroup, func(g *ekssim.Group) { g.Status = "ACTIVE" })
	b.clock.Step(fresh + time.Second)
	if id, err := set(); id == "" || err != nil || b.Updates(gpus.Nodegroup) != 1 {
		t.Errorf("after the update, SetDesired gives %q, %v", id, err)
	}
}

func TestSizesOutsideOfTheLimitsAreNotAskedFor(t *testing.T) {
	b := newBench(t)
	b.Change(gpus.Nodegroup, func(g *ekssim.Group) { g.Min, g.Desired = 1, 3 })
	for target, say := range map[int]string{
		6: "its maxSize at EKS is 5; raise maxSize, or set spec.max of the GPUNodeGroup to 5",
		2: "node group gpus of cluster one is not made smaller: desiredSize is 3, minSize 1, and 2 was to be set",
		0: "is not made smaller",
	} {
		_, err := b.set(b.intent(target))
		if err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("SetDesired to %d gives %v, want a text with %q", target, err, say)
		}
	}
	if n := b.count("UpdateNodegroupConfig"); n != 0 {
		t.Errorf("EKS was called %d times", n)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	fault := func(status int, code string) ekssim.Fault { return ekssim.Fault{Status: status, Code: code} }
	for name, test := range map[string]struct {
		fault ekssim.Fault
		group v1alpha1.EKSNodegroup
		say   []string
		calls int
	}{
		"denied":              {ekssim.Denied("DescribeNodegroup"), gpus, []string{"AWS denies eks:DescribeNodegroup", "IRSA or Pod Identity", "arn:aws:sts"}, 1},
		"no such group":       {ekssim.Fault{}, v1alpha1.EKSNodegroup{Cluster: "one", Nodegroup: "cpus"}, []string{"node group cpus of cluster one", "correct spec.provider.eks"}, 1},
		"no such cluster":     {ekssim.Fault{}, v1alpha1.EKSNodegroup{Cluster: "two", Nodegroup: "gpus"}, []string{"No cluster found", "region"}, 1},
		"throttled":           {ekssim.Throttled("", 0), gpus, []string{"EKS throttles", "pauses until 12:00:30 UTC"}, 1},
		"throttled unnamed":   {fault(429, "SomethingElse"), gpus, []string{"EKS throttles"}, 1},
		"broken":              {ekssim.Broken("", 0), gpus, []string{"DescribeNodegroup of node group gpus of cluster one", "Internal error"}, attempts},
		"expired credentials": {fault(403, "ExpiredTokenException"), gpus, []string{"does not accept the controller's credentials"}, 1},
		"bad request":         {fault(400, "InvalidParameterException"), gpus, []string{"EKS refuses the request"}, 1},
		"no answer":           {ekssim.Fault{Hangup: true}, gpus, []string{"could not be asked", "endpoint"}, attempts},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if test.fault != (ekssim.Fault{}) {
				b.Inject(test.fault)
			}
			got := b.client.Describe(context.Background(), groupOf(test.group, ""))
			if got.Err == nil {
				t.Fatalf("Describe gives %+v without an error", got)
			}
			for _, say := range test.say {
				if !strings.Contains(got.Err.Error(), say) {
					t.Errorf("the error does not say %q: %v", say, got.Err)
				}
			}
			if n := b.count("DescribeNodegroup"); n != test.calls {
				t.Errorf("EKS was called %d times, want %d", n, test.calls)
			}
		})
	}
}

// The same failure has the same text, or its condition would change at each call.
func TestTheSameFailureHasTheSameText(t *testing.T) {
	for name, fault := range map[string]ekssim.Fault{
		"denied":    ekssim.Denied("DescribeNodegroup"),
		"broken":    ekssim.Broken("", 0),
		"no answer": {Hangup: true},
		"throttled": ekssim.Throttled("", 0),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.Inject(fault)
			b.describe("")
			b.clock.Step(16 * time.Second)
			first := b.describe("").Err
			b.clock.Step(10 * time.Second)
			b.client.forget(idOf(groupOf(gpus, "")))
			if again := b.describe("").Err; first == nil || again == nil || first.Error() != again.Error() {
				t.Errorf("the failure is\n%v\nand then\n%v", first, again)
			}
		})
	}
	for text, want := range map[string]string{
		"https response error StatusCode: 403, RequestID: 0aB-1, AccessDenied: no": "https response error StatusCode: 403, AccessDenied: no",
		"read tcp 10.0.0.7:41234->10.1.0.1:443: connection reset by peer":          "read tcp 10.1.0.1:443: connection reset by peer",
	} {
		if got := (lasting{errors.New(text)}).Error(); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func TestCallsThatAreThrottledAtOnceAreOnePause(t *testing.T) {
	b := newBench(t)
	throttled := &smithy.GenericAPIError{Code: "ThrottlingException"}
	for range 4 {
		if err := b.client.judge(apiEKS, "DescribeNodegroup", groupID{}, throttled); !strings.Contains(err.Error(), "until 12:00:30") {
			t.Error(err)
		}
	}
	err := b.client.judge(apiEKS, "DescribeUpdate", groupID{}, nil)
	if _, paused := b.client.paused(); err != nil || !paused {
		t.Error("a call that was made before ends the pause")
	}
}

func TestAGroupThatIsBusyIsNotAskedInEveryPass(t *testing.T) {
	for name, fault := range map[string]ekssim.Fault{
		"busy":   {Operation: "UpdateNodegroupConfig", Status: 409, Code: "ResourceInUseException"},
		"broken": ekssim.Broken("UpdateNodegroupConfig", 0),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.Inject(fault)
			intent := b.intent(1)
			set := func() { _, _ = b.set(intent) }
			set()
			once := len(b.Calls())
			for range 10 {
				b.clock.Step(time.Second)
				set()
			}
			if n := len(b.Calls()); n != once {
				t.Errorf("EKS was called %d times within seconds, want %d", n, once)
			}
			b.clock.Step(fresh)
			if set(); len(b.Calls()) == once {
				t.Error("EKS is not called again")
			}
		})
	}
}

func TestACallThatHangsIsGivenUp(t *testing.T) {
	b := newBench(t)
	b.client.timeout = 50 * time.Millisecond
	b.Inject(ekssim.Fault{Latency: time.Minute})
	if got := b.describe(""); !errors.Is(got.Err, context.DeadlineExceeded) {
		t.Errorf("Describe gives %v, want that the deadline is exceeded", got.Err)
	}
}

func TestThrottlingLetsAllCallsPause(t *testing.T) {
	b := newBench(t)
	other := v1alpha1.EKSNodegroup{Cluster: "one", Nodegroup: "others"}
	b.Add(ekssim.Group{Name: other.Nodegroup, Max: 1})
	b.Inject(ekssim.Throttled("", 2))
	for i, step := range []struct {
		after time.Duration
		calls int
		works bool
	}{
		{0, 1, false},
		{29 * time.Second, 1, false},
		{2 * time.Second, 2, false}, // throttled again: a pause twice as long
		{59 * time.Second, 2, false},
		{2 * time.Second, 3, true},
		{time.Second, 4, true},
	} {
		b.clock.Step(step.after)
		got := b.client.Describe(context.Background(), groupOf([]v1alpha1.EKSNodegroup{gpus, other}[i%2], ""))
		if works := got.Err == nil; works != step.works {
			t.Errorf("step %d: the error is %v", i, got.Err)
		}
		if n := len(b.Calls()); n != step.calls {
			t.Errorf("step %d: EKS was called %d times, want %d", i, n, step.calls)
		}
	}
	b.Inject(ekssim.Throttled("", 1))
	if _, err := b.set(b.intent(1)); !errors.Is(err, ErrThrottled) {
		t.Errorf("SetDesired gives %v, want that it was throttled", err)
	}
}

func TestAnswersCountForAWhile(t *testing.T) {
	b := newBench(t)
	ask := func(after time.Duration, update string, describes int) {
		t.Helper()
		b.clock.Step(after)
		b.describe(update)
		if n := b.count("DescribeNodegroup"); n != describes {
			t.Errorf("%d calls of DescribeNodegroup, want %d", n, describes)
		}
	}
	ask(0, "", 1)
	ask(14*time.Second, "", 1)
	ask(0, pair.IntentID, 1) // that is no update of EKS
	ask(time.Second, "", 2)
	ask(0, "00000000-0000-4000-8000-000000000001", 3)
	if _, err := b.set(b.intent(1)); err != nil {
		t.Fatal(err)
	}
	ask(0, "00000000-0000-4000-8000-000000000001", 5)
	b.Inject(ekssim.Broken("DescribeNodegroup", 0))
	ask(15*time.Second, "", 7)
	ask(time.Second, "", 7)
}

func TestAFailedUpdateIsReported(t *testing.T) {
	b := newBench(t)
	b.FailNextUpdate(gpus.Nodegroup, ekssim.UpdateError{Code: "InsufficientFreeAddresses", Message: "subnet-1 has no free addresses"})
	id, err := b.set(b.intent(1))
	if err != nil {
		t.Fatal(err)
	}
	b.clock.Step(takes)
	if got, want := b.describe(id).Failed, "InsufficientFreeAddresses: subnet-1 has no free addresses"; got != want {
		t.Errorf("failed because of %q, want %q", got, want)
	}
	if got := b.describe("").Failed; got != "" {
		t.Errorf("a failure %q of no update of ours", got)
	}
}

const noCapacity = "Could not launch On-Demand Instances. InsufficientInstanceCapacity"

func TestNoCapacityIsAFailureThoughTheUpdateSucceeds(t *testing.T) {
	b := newBench(t)
	b.Change(gpus.Nodegroup, func(g *ekssim.Group) { g.NoCapacity = noCapacity })
	intent := b.intent(1)
	id, err := b.set(intent)
	if err != nil {
		t.Fatal(err)
	}
	b.clock.Step(takes)
	want := "AsgInstanceLaunchFailures: " + noCapacity
	if got := b.describe(id).Failed; got != want {
		t.Errorf("failed because of %q, want %q", got, want)
	}
	if _, err := b.set(intent); err != nil {
		t.Fatal(err)
	}
	if got := b.describe(id).Failed; got != want {
		t.Errorf("asked for again, failed because of %q, want %q", got, want)
	}
}

func TestAnOldComplaintEndsNoScaleUp(t *testing.T) {
	b := newBench(t)
	b.Change(gpus.Nodegroup, func(g *ekssim.Group) {
		g.Issues = []ekssim.Issue{{Code: "AsgInstanceLaunchFailures", Message: "last week"}}
	})
	id, err := b.set(b.intent(1))
	if err != nil {
		t.Fatal(err)
	}
	b.clock.Step(takes)
	b.Settle()
	b.Change(gpus.Nodegroup, func(g *ekssim.Group) {
		g.Issues = []ekssim.Issue{{Code: "AsgInstanceLaunchFailures", Message: "last week"}, {Code: "PodEvictionFailure", Message: "now"}}
	})
	if got := b.describe(id).Failed; got != "" {
		t.Errorf("failed because of %q, which is old or nothing to do with it", got)
	}
	b.Change(gpus.Nodegroup, func(g *ekssim.Group) {
		g.Issues = []ekssim.Issue{{Code: "InstanceLimitExceeded", Message: "now"}}
	})
	b.restart(t)
	if got := b.describe(id).Failed; got != "" {
		t.Errorf("failed because of %q, which may be old for all that a new process knows", got)
	}
}

func TestAClientNeedsARegionAndAnEndpointThatIsOne(t *testing.T) {
	environment(t)
	if _, err := New(context.Background(), Options{Endpoint: "eks.local"}); err == nil || !strings.Contains(err.Error(), `"eks.local" is no URL`) {
		t.Errorf("a wrong endpoint gives %v", err)
	}
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	if _, err := New(context.Background(), Options{}); err == nil || !strings.Contains(err.Error(), "no AWS region is known") {
		t.Errorf("no region gives %v", err)
	}
	if _, err := New(context.Background(), Options{Region: "eu-west-1"}); err != nil {
		t.Errorf("a given region gives %v", err)
	}
}
