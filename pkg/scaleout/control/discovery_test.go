package control

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// listing is a Discovery with the node groups that EKS lists.
type listing struct {
	t    *testing.T
	w    *world
	all  []view.Discovered
	err  error
	task *Discovery
}

func newListing(t *testing.T) *listing {
	l := &listing{t: t, w: newWorld(t)}
	l.task = &Discovery{Client: l.w.client, Clock: l.w.clock, List: func(context.Context) ([]view.Discovered, error) { return l.all, l.err }}
	return l
}

// has makes EKS list one node group p5, with changes.
func (l *listing) has(change ...func(*v1alpha1.GPUNodeGroup)) {
	l.all = []view.Discovered{{Nodegroup: "p5", Group: group("p5", append([]func(*v1alpha1.GPUNodeGroup){func(g *v1alpha1.GPUNodeGroup) {
		g.Spec.Provider.EKS.Cluster = "one"
		g.Spec.InstanceType, g.Spec.Max = "p5.48xlarge", ptr.To(int32(3))
		g.Spec.Template.Labels = map[string]string{"team": "a", "example.com/pool": "x"}
		g.Spec.Template.Taints = []corev1.Taint{{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule}}
	}}, change...)...)}}
}

func (l *listing) once() *v1alpha1.GPUNodeGroup {
	l.t.Helper()
	if err := l.task.Once(l.t.Context()); err != nil {
		l.t.Fatal(err)
	}
	return l.group()
}

func (l *listing) group() *v1alpha1.GPUNodeGroup {
	l.t.Helper()
	return get(l.w, &v1alpha1.GPUNodeGroup{}, "", "p5")
}

// edit is an administrator's kubectl edit.
func (l *listing) edit(change func(*v1alpha1.GPUNodeGroup)) {
	l.t.Helper()
	g := l.group()
	change(g)
	if err := l.w.client.Update(l.t.Context(), g, client.FieldOwner("kubectl-edit")); err != nil {
		l.t.Fatal(err)
	}
}

func TestADiscoveredGroupFollowsEKS(t *testing.T) {
	l := newListing(t)
	l.has()
	if g := l.once(); *g.Spec.Max != 3 || g.Labels[v1alpha1.LabelDiscovered] != discoveredFromEKS {
		t.Fatalf("it is declared as %+v", g)
	}
	l.has(func(g *v1alpha1.GPUNodeGroup) {
		g.Spec.InstanceType, g.Spec.Max, g.Spec.Min = "p5e.48xlarge", ptr.To(int32(9)), 1
		g.Spec.Template.Labels = map[string]string{"team": "b"}
		g.Spec.Template.Taints = append(g.Spec.Template.Taints, corev1.Taint{Key: "new", Value: "x", Effect: corev1.TaintEffectNoExecute})
	})
	spec := l.once().Spec
	if spec.InstanceType != "p5e.48xlarge" || *spec.Max != 9 || spec.Min != 1 || len(spec.Template.Taints) != 2 ||
		len(spec.Template.Labels) != 1 || spec.Template.Labels["team"] != "b" {
		t.Errorf("it is %+v", spec)
	}
	l.w.expectCondition("p5", v1alpha1.ConditionDiscovered, metav1.ConditionTrue, v1alpha1.ReasonListed)
}

// A discovered group is observed, unless the controller's setting or an administrator changes its pairing. A later setting
// does not change existing groups.
func TestADiscoveredGroupIsObserved(t *testing.T) {
	for setting, want := range map[v1alpha1.Pairing]v1alpha1.Pairing{"": v1alpha1.PairingObserve, v1alpha1.PairingPlaceholder: v1alpha1.PairingPlaceholder} {
		l := newListing(t)
		l.has()
		l.task.Pairing = setting
		if got := l.once().Spec.Pairing; got != want {
			t.Errorf("with %q, it has pairing %s, want %s", setting, got, want)
		}
		for _, later := range []v1alpha1.Pairing{v1alpha1.PairingPlaceholder, v1alpha1.PairingObserve} {
			l.task.Pairing = later
			if got := l.once().Spec.Pairing; got != want {
				t.Errorf("with %q and later %s, it has pairing %s, want %s", setting, later, got, want)
			}
		}
	}
	l := newListing(t)
	l.has()
	l.once()
	l.w.pass()
	l.w.expectMessage("p5", v1alpha1.ConditionReady, `kubectl patch gpunodegroup p5 --type=merge -p '{"spec":{"pairing":"placeholder"}}'`)
	l.edit(func(g *v1alpha1.GPUNodeGroup) { g.Spec.Pairing = v1alpha1.PairingPlaceholder })
	l.once()
	l.w.autoscale()
	l.w.pass()
	l.w.expectMessage("p5", v1alpha1.ConditionReady, "the group can grow")
}

// An administrator's fields stay. The others follow EKS.
func TestFieldsOfAnAdministratorStay(t *testing.T) {
	l := newListing(t)
	l.has()
	l.once()
	l.edit(func(g *v1alpha1.GPUNodeGroup) {
		g.Spec.Max, g.Spec.Pairing = ptr.To(int32(1)), v1alpha1.PairingPlaceholder
		g.Spec.Template.Labels["example.com/pool"] = "mine"
		g.Spec.Template.DriverVersion = "580.95.05"
	})
	l.has(func(g *v1alpha1.GPUNodeGroup) {
		g.Spec.InstanceType, g.Spec.Max = "p5e.48xlarge", ptr.To(int32(9))
		g.Spec.Template.Labels["team"] = "b"
	})
	for range 2 {
		spec := l.once().Spec
		if *spec.Max != 1 || spec.Pairing != v1alpha1.PairingPlaceholder || spec.Template.Labels["example.com/pool"] != "mine" || spec.Template.DriverVersion == "" {
			t.Errorf("an administrator's field is gone: %+v", spec)
		}
		if spec.InstanceType != "p5e.48xlarge" || spec.Template.Labels["team"] != "b" {
			t.Errorf("the rest does not follow: %+v", spec)
		}
	}
}

func TestADeclaredGroupIsNotTouched(t *testing.T) {
	l := newListing(t)
	l.w.create(group("mine", func(g *v1alpha1.GPUNodeGroup) { g.Spec.Provider.EKS.Nodegroup = "p5" }))
	l.w.create(group("other"))
	l.has()
	l.all = append(l.all, view.Discovered{Nodegroup: "Other", Group: group("other", func(g *v1alpha1.GPUNodeGroup) { g.Spec.Provider.EKS.Nodegroup = "Other" })})
	if err := l.task.Once(t.Context()); err == nil || !strings.Contains(err.Error(), "under another name") {
		t.Errorf("a name that another group has: %v", err)
	}
	for _, g := range all(l.w, &v1alpha1.GPUNodeGroupList{}).Items {
		if g.Spec.InstanceType != "g6.12xlarge" || len(g.Labels) > 0 || len(g.Status.Conditions) > 0 {
			t.Errorf("%s is %+v", g.Name, g)
		}
	}
}

// A group that EKS does not list any more does not grow, and reports that. A group that cannot be read stays as it is.
func TestADiscoveredGroupThatIsGoneDoesNotGrow(t *testing.T) {
	l := newListing(t)
	l.has(untainted)
	l.task.Pairing = v1alpha1.PairingPlaceholder
	l.once()
	l.err = errors.New("throttled")
	if err := l.task.Once(t.Context()); err == nil {
		t.Error("a list that fails is no error")
	}
	l.w.expectCondition("p5", v1alpha1.ConditionDiscovered, metav1.ConditionTrue, v1alpha1.ReasonListed)
	l.err, l.all = nil, []view.Discovered{{Nodegroup: "p5", Err: errors.New("the answer is no JSON")}}
	if err := l.task.Once(t.Context()); err == nil {
		t.Error("a group that cannot be read is no error")
	}
	l.w.expectCondition("p5", v1alpha1.ConditionDiscovered, metav1.ConditionUnknown, v1alpha1.ReasonNotRead)
	l.all = nil
	l.once()
	l.w.expectCondition("p5", v1alpha1.ConditionDiscovered, metav1.ConditionFalse, v1alpha1.ReasonNodegroupGone)
	l.w.createAndTry(oneGPU(1)...)
	l.w.run(2 * time.Minute)
	l.w.expectCondition("p5", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNodegroupGone)
	if n := l.w.placeholders() + l.w.nodes(); n != 0 {
		t.Errorf("%d placeholders and nodes for a group that is gone", n)
	}
	l.has(untainted)
	l.once()
	l.w.run(2 * time.Minute)
	l.w.expectCondition("p5", v1alpha1.ConditionDiscovered, metav1.ConditionTrue, v1alpha1.ReasonListed)
	if n := l.w.placeholders() + l.w.nodes(); n == 0 {
		t.Error("no node is asked for of a group that has come back")
	}
}

func untainted(g *v1alpha1.GPUNodeGroup) { g.Spec.Template.Taints = nil }
