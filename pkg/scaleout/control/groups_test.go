package control

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
	"github.com/mica-gpu/mica/test/fixture"
)

func TestAScaleUpIsCountedOnce(t *testing.T) {
	at := func(id string, target int32, second int64) v1alpha1.InFlight {
		return v1alpha1.InFlight{ID: id, Nodes: 2, Target: target, Since: metav1.NewTime(time.Unix(second, 0))}
	}
	for name, test := range map[string]struct {
		before, after []v1alpha1.InFlight
		want          int
	}{
		"none":                            {},
		"a placeholder":                   {after: []v1alpha1.InFlight{at("a", 0, 1)}, want: 2},
		"a placeholder more":              {[]v1alpha1.InFlight{at("a", 0, 1)}, []v1alpha1.InFlight{at("a", 0, 1), at("b", 0, 1)}, 2},
		"its age by another clock":        {[]v1alpha1.InFlight{at("a", 0, 1)}, []v1alpha1.InFlight{at("a", 0, 2)}, 0},
		"the same":                        {[]v1alpha1.InFlight{at("a", 0, 1)}, []v1alpha1.InFlight{at("a", 0, 1)}, 0},
		"an update in its intent's place": {[]v1alpha1.InFlight{at(pair.IntentID, 4, 1)}, []v1alpha1.InFlight{at("u", 4, 1)}, 0},
		"another intent":                  {[]v1alpha1.InFlight{at("u", 4, 1)}, []v1alpha1.InFlight{at("u", 4, 1), at(pair.IntentID, 6, 2)}, 2},
		"one that is over":                {[]v1alpha1.InFlight{at("a", 0, 1)}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := begunNodes(test.before, test.after); got != test.want {
				t.Errorf("%d nodes are begun, want %d", got, test.want)
			}
		})
	}
}

// Five pods of one GPU get two nodes of four. The files have the group's status from no node to two.
func TestTheStatusOfAGroup(t *testing.T) {
	w := newWorld(t, append(oneGPU(5), group("g6"))...)
	for _, step := range []struct {
		file string
		time time.Duration
	}{{"1-asked", 15 * time.Second}, {"2-starting", 30 * time.Second}, {"3-served", 4 * time.Minute}} {
		w.run(step.time)
		status := w.status("g6")
		if status.Template != nil && len(status.Template.Data) > 0 {
			status.Template.Data = []byte("compressed")
		}
		text, err := yaml.Marshal(status)
		if err != nil {
			t.Fatal(err)
		}
		fixture.Golden(t, "status-"+step.file+".yaml", string(text))
	}
	expectServed(t, w, 5, 2)
}

// Neither a longer backoff nor another message makes an Event.
func TestALastingStateHasOneEvent(t *testing.T) {
	w := newWorld(t)
	until := w.clock.Now()
	status := func(reason, message string, failures int32) *v1alpha1.GPUNodeGroupStatus {
		until = until.Add(4 * time.Minute)
		r := groupReport{group: view.Group{Object: group("g6"), Template: &template.Template{Source: v1alpha1.SourceCatalogue}}, now: w.clock.Now(), pairing: pair.GroupStatus{
			NotReady: v1alpha1.ReasonEKSUnavailable, Message: message,
			Backoff: &v1alpha1.Backoff{Until: metav1.NewTime(until), Failures: failures, Reason: reason, Message: message},
		}}
		status, err := r.status(&v1alpha1.GPUNodeGroupStatus{})
		if err != nil {
			t.Fatal(err)
		}
		return status
	}
	before := group("g6")
	for i, step := range []struct {
		status *v1alpha1.GPUNodeGroupStatus
		events int
	}{
		{status(v1alpha1.ReasonAutoscalerBackedOff, "no machine", 1), 2},
		{status(v1alpha1.ReasonAutoscalerBackedOff, "no machine", 1), 0},
		{status(v1alpha1.ReasonAutoscalerBackedOff, "no machine in b", 1), 0},
		{status(v1alpha1.ReasonScaleUpFailed, "no machine", 1), 1},
		{status(v1alpha1.ReasonScaleUpFailed, "no machine", 2), 1},
	} {
		w.loop.recordEvents(before, step.status)
		if all := w.events(); len(all) != step.events {
			t.Errorf("step %d has the Events %q, want %d", i, all, step.events)
		}
		before.Status = *step.status
	}
}

// nodegroups is an EKS that succeeds at once.
type nodegroups struct{ view.Nodegroup }

func (n *nodegroups) Describe(context.Context, *v1alpha1.GPUNodeGroup) view.Nodegroup {
	return n.Nodegroup
}

func (n *nodegroups) SetDesired(_ context.Context, _ *v1alpha1.GPUNodeGroup, intent v1alpha1.InFlight) (string, error) {
	n.Desired = int(intent.Target)
	return "update-1", nil
}

func (n *nodegroups) End(context.Context, *v1alpha1.GPUNodeGroup, string) error {
	n.Desired--
	return nil
}

func byEKS(g *v1alpha1.GPUNodeGroup) {
	g.Spec.Pairing, g.Spec.Provider.EKS.Cluster = v1alpha1.PairingDirect, "one"
}

func TestAScaleUpByEKSHasOneEvent(t *testing.T) {
	w := newWorld(t, append(oneGPU(5), group("g6", byEKS))...)
	w.loop.Nodegroups = &nodegroups{Nodegroup: view.Nodegroup{Max: 5, Status: "ACTIVE"}}
	w.loop.executor.Nodegroups = w.loop.Nodegroups
	w.pass()
	w.pass()
	w.expectEvents(w.events(), 1, "Normal ScaleUpBegun", "Asked for 2 more nodes by pairing direct")
	if inFlight := w.status("g6").InFlight; len(inFlight) != 1 || inFlight[0].ID != "update-1" {
		t.Errorf("in flight are %v, want update-1", inFlight)
	}
}

func TestWhatWasLearnedOutlivesAMistake(t *testing.T) {
	w := newWorld(t, append(oneGPU(5), group("g6"))...)
	w.run(4 * time.Minute)
	w.create(group("twin", func(g *v1alpha1.GPUNodeGroup) { g.Spec.Provider.EKS.Nodegroup = "g6" }))
	w.pass()
	w.expectCondition("g6", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonSameNodes)
	if status := w.status("g6"); status.Template == nil || len(status.Template.Data) == 0 || status.InstanceType != "g6.12xlarge" {
		t.Errorf("what was learned is lost: %+v", status)
	}
}

func TestReadyReportsOutdatedDefinitions(t *testing.T) {
	w := newWorld(t)
	w.create(group("g"))
	w.loop.Outdated = func() string { return "The CustomResourceDefinitions are older than Mica." }
	w.pass()
	w.expectMessage("g", v1alpha1.ConditionReady, "The CustomResourceDefinitions are older than Mica.")
}
