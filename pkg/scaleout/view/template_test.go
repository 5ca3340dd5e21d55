package view

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
)

const testDriver = "gpu.nvidia.com"

// machine adds a node of the group as it would really come: ready, with what an instance type
// has, changed.
func (o *objects) machine(t *testing.T, group *v1alpha1.GPUNodeGroup, instanceType, name string, age time.Duration, change ...func(*corev1.Node, []*resourceapi.ResourceSlice)) {
	t.Helper()
	typed := group.DeepCopy()
	typed.Spec.InstanceType = instanceType
	predicted, err := template.Predict(testDriver, typed, "", nil, template.StartupTaints{})
	if err != nil {
		t.Fatal(err)
	}
	node := predicted.Node.DeepCopy()
	node.Name, node.CreationTimestamp, node.ResourceVersion = name, metav1.NewTime(t0.Add(-age)), "1"
	node.Labels[corev1.LabelHostname] = name
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(t0.Add(-age))}}
	var published []*resourceapi.ResourceSlice
	for i, slice := range predicted.Slices {
		own := slice.DeepCopy()
		own.Name, own.ResourceVersion = fmt.Sprintf("%s-%d", name, i), "1"
		own.Spec.NodeName, own.Spec.Pool.Name = &name, name
		published = append(published, own)
	}
	for _, c := range change {
		c(node, published)
	}
	o.nodes.Items = append(o.nodes.Items, *node)
	for _, slice := range published {
		if slice.Name != "" {
			o.slices.Items = append(o.slices.Items, *slice)
		}
	}
}

// kept is the group with what its status keeps of a node that it had.
func kept(t *testing.T, group *v1alpha1.GPUNodeGroup, instanceType, policy string) *v1alpha1.GPUNodeGroup {
	t.Helper()
	var past objects
	past.machine(t, group, instanceType, "past", time.Hour)
	learned := template.Learn(&past.nodes.Items[0], pointers(past.slices.Items), nil, template.StartupTaints{}, t0.Add(-time.Hour))
	learned.Policy = policy
	data, err := template.Encode(learned)
	if err != nil {
		t.Fatal(err)
	}
	out := group.DeepCopy()
	out.Status.Template = &v1alpha1.TemplateStatus{Source: v1alpha1.SourceLearned, Node: "past", Policy: policy, Data: data}
	return out
}

func look(o *objects, groups ...*v1alpha1.GPUNodeGroup) *View {
	return lookBy(o, template.StartupTaints{}, groups...)
}

func lookBy(o *objects, startup template.StartupTaints, groups ...*v1alpha1.GPUNodeGroup) *View {
	for _, group := range groups {
		o.groups.Items = append(o.groups.Items, *group)
	}
	return newReading(o, Options{Driver: testDriver, Now: t0, StartupTaints: startup, Memo: NewMemo()}).view()
}

func typed(instanceType string) func(*v1alpha1.GPUNodeGroup) {
	return func(g *v1alpha1.GPUNodeGroup) { g.Spec.InstanceType = instanceType }
}

func oneGPULess(_ *corev1.Node, slices []*resourceapi.ResourceSlice) {
	last := slices[len(slices)-1]
	last.Spec.Devices = last.Spec.Devices[:len(last.Spec.Devices)-1]
}

func withoutSlices(_ *corev1.Node, slices []*resourceapi.ResourceSlice) {
	for _, slice := range slices {
		slice.Name = ""
	}
}

func notReady(node *corev1.Node, _ []*resourceapi.ResourceSlice) { node.Status.Conditions = nil }

var tainted = taintedBy(v1alpha1.TaintStartup)

func taintedBy(key string) func(*corev1.Node, []*resourceapi.ResourceSlice) {
	return func(node *corev1.Node, _ []*resourceapi.ResourceSlice) {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
}

func TestTheBestTemplateCounts(t *testing.T) {
	g6 := testGroup("g", pool("g"), typed("g6.12xlarge"))
	untyped := testGroup("g", pool("g"))
	for name, test := range map[string]struct {
		group *v1alpha1.GPUNodeGroup
		live  func(*testing.T, *objects)
		// source, the node it was learned from, and the number of devices.
		want string
		// differs are nodes that are not as was expected.
		differs string
		unknown string
	}{
		"the catalogue":          {group: g6, want: "Catalogue  4"},
		"nothing is known":       {group: untyped, unknown: "instanceType"},
		"the type is not known":  {group: testGroup("g", pool("g"), typed("x9.large")), unknown: "x9.large"},
		"a node that it had":     {group: kept(t, g6, "g6.12xlarge", ""), want: "Learned past 4"},
		"of no known type":       {group: kept(t, untyped, "g6.12xlarge", ""), want: "Learned past 4"},
		"another policy applied": {group: kept(t, g6, "g6.12xlarge", "old/1"), want: "Catalogue  4"},
		"the policy is unknown":  {group: kept(t, untyped, "g6.12xlarge", "old/1"), want: "Learned past 4"},
		"the type was changed":   {group: kept(t, testGroup("g", pool("g"), typed("g6.48xlarge")), "g6.12xlarge", ""), want: "Catalogue  8"},
		"a live node": {
			group: kept(t, g6, "g6.12xlarge", ""),
			live:  func(t *testing.T, o *objects) { o.machine(t, g6, "g6.12xlarge", "n1", time.Minute) },
			want:  "LiveNode n1 4",
		},
		"a live node of no known type": {
			group: untyped,
			live:  func(t *testing.T, o *objects) { o.machine(t, untyped, "g6.12xlarge", "n1", time.Minute) },
			want:  "LiveNode n1 4",
		},
		"a live node that is not ready": {
			group: g6,
			live:  func(t *testing.T, o *objects) { o.machine(t, g6, "g6.12xlarge", "n1", time.Minute, notReady) },
			want:  "Catalogue  4",
		},
		"a live node without slices": {
			group: g6,
			live:  func(t *testing.T, o *objects) { o.machine(t, g6, "g6.12xlarge", "n1", time.Minute, withoutSlices) },
			want:  "Catalogue  4",
		},
		"a live node that differs": {
			group:   g6,
			live:    func(t *testing.T, o *objects) { o.machine(t, g6, "g6.12xlarge", "n1", time.Minute, oneGPULess) },
			want:    "LiveNode n1 3",
			differs: "n1",
		},
		"a live node that was learned to differ": {
			group: func() *v1alpha1.GPUNodeGroup {
				learned := kept(t, testGroup("g", pool("g")), "g6.xlarge", "")
				learned.Spec.InstanceType = ""
				learned.Spec.Template.GPUs = nil
				return learned
			}(),
			live:    func(t *testing.T, o *objects) { o.machine(t, g6, "g6.12xlarge", "n1", time.Minute) },
			want:    "LiveNode n1 4",
			differs: "n1",
		},
		"most live nodes": {
			group: g6,
			live: func(t *testing.T, o *objects) {
				o.machine(t, g6, "g6.12xlarge", "n1", 3*time.Minute)
				o.machine(t, g6, "g6.12xlarge", "n2", 2*time.Minute)
				o.machine(t, g6, "g6.12xlarge", "n3", time.Minute, oneGPULess)
			},
			want:    "LiveNode n2 4",
			differs: "n3",
		},
		"the newest of as many": {
			group: g6,
			live: func(t *testing.T, o *objects) {
				o.machine(t, g6, "g6.12xlarge", "n1", 2*time.Minute)
				o.machine(t, g6, "g6.12xlarge", "n2", time.Minute, oneGPULess)
			},
			want:    "LiveNode n2 3",
			differs: "n2",
		},
		"the one that was learned from before": {
			group: kept(t, g6, "g6.12xlarge", ""),
			live: func(t *testing.T, o *objects) {
				o.machine(t, g6, "g6.12xlarge", "past", 2*time.Hour)
				o.machine(t, g6, "g6.12xlarge", "n2", time.Minute)
			},
			want: "LiveNode past 4",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var o objects
			if test.live != nil {
				test.live(t, &o)
			}
			v := look(&o, test.group)
			state := v.GroupStates[0]
			if test.unknown != "" {
				if v.Groups[0].Template != nil || !strings.Contains(v.Groups[0].Unknown, test.unknown) {
					t.Errorf("unknown is %q, want something about %s", v.Groups[0].Unknown, test.unknown)
				}
				return
			}
			if got := describe(state.Template); got != test.want {
				t.Errorf("the template is %q, want %q", got, test.want)
			}
			var differs []string
			for _, node := range state.Nodes {
				if node.Difference != "" {
					differs = append(differs, node.Object.Name)
				}
			}
			if got := strings.Join(differs, " "); got != test.differs {
				t.Errorf("differing are %q, want %q", got, test.differs)
			}
		})
	}
}

func describe(t *template.Template) string {
	if t == nil {
		return "none"
	}
	gpus := 0
	for _, slice := range t.Slices {
		for _, device := range slice.Spec.Devices {
			if kind := device.Attributes["type"].StringValue; kind != nil && *kind == "gpu" {
				gpus++
			}
		}
	}
	return fmt.Sprintf("%s %s %d", t.Source, t.LearnedFrom, gpus)
}

func TestANodeThatIsNotCompleteIsStartingForAWhile(t *testing.T) {
	g := testGroup("g", pool("g"), typed("g6.12xlarge"))
	for name, test := range map[string]struct {
		age    time.Duration
		change func(*corev1.Node, []*resourceapi.ResourceSlice)
		want   bool
	}{
		"complete":                           {time.Minute, func(*corev1.Node, []*resourceapi.ResourceSlice) {}, false},
		"not ready":                          {time.Minute, notReady, true},
		"ready long before its slices":       {29 * time.Minute, withoutSlices, true},
		"complete, with startup taint":       {time.Minute, tainted, true},
		"complete, without storage yet":      {time.Minute, taintedBy("ebs.csi.aws.com/agent-not-ready"), true},
		"complete, with one of the operator": {time.Minute, taintedBy("example.com/boots"), true},
		"complete, and about to go":          {time.Minute, taintedBy("ToBeDeletedByClusterAutoscaler"), false},
		"never gets there":                   {31 * time.Minute, withoutSlices, false},
		"not ready any more":                 {24 * time.Hour, notReady, false},
		"from the future, not complete":      {-time.Hour, withoutSlices, true},
		"being deleted": {time.Minute, func(node *corev1.Node, _ []*resourceapi.ResourceSlice) {
			node.Status.Conditions, node.DeletionTimestamp = nil, &metav1.Time{Time: t0}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var o objects
			o.machine(t, g, "g6.12xlarge", "n1", test.age, test.change)
			v := lookBy(&o, template.StartupTaints{Keys: []string{"example.com/boots"}}, g)
			if got := v.GroupStates[0].Starting(v.GroupStates[0].Nodes[0], t0); got != test.want {
				t.Errorf("the node is starting: %v, want %v (it lacks %v)", got, test.want, v.GroupStates[0].Nodes[0].Missing)
			}
			if len(v.Nodes) > 0 && v.Nodes[0].Starting != test.want {
				t.Errorf("the planner is told otherwise")
			}
		})
	}
}

// A template that was learned when another driver was installed would keep every new node of
// the group behind its startup taint.
func TestADriverThatIsGoneDoesNotCloseAGroupForEver(t *testing.T) {
	g := testGroup("g", pool("g"), typed("g6.12xlarge"))
	var past objects
	past.machine(t, g, "g6.12xlarge", "past", time.Hour)
	nics := past.slices.Items[0].DeepCopy()
	nics.Name, nics.Spec.Driver, nics.Spec.SharedCounters = "past-nics", "dra.net", nil
	nics.Spec.Pool.ResourceSliceCount, nics.Spec.Devices = 1, []resourceapi.Device{{Name: "nic-0"}}
	learned := template.Learn(&past.nodes.Items[0], append(pointers(past.slices.Items), nics), nil, template.StartupTaints{}, t0.Add(-time.Hour))
	data, err := template.Encode(learned)
	if err != nil {
		t.Fatal(err)
	}
	g.Status.Template = &v1alpha1.TemplateStatus{Source: v1alpha1.SourceLearned, Node: "past", Data: data}
	const lacking = "driver dra.net has published no slice: look whether its plugin runs on the node"
	halfOfIt := func(name string) *resourceapi.ResourceSlice {
		half := nics.DeepCopy()
		half.Name, half.Spec.NodeName, half.Spec.Pool.Name, half.Spec.Pool.ResourceSliceCount = "half", &name, "nics", 2
		return half
	}
	for name, test := range map[string]struct {
		age             time.Duration
		change          func(*corev1.Node, []*resourceapi.ResourceSlice)
		other           *resourceapi.ResourceSlice
		missing, waived string
		template        string
		drivers         int
	}{
		"before its time is up":       {29 * time.Minute, tainted, nil, lacking, "", "Learned past 4", 2},
		"when its time is up":         {30 * time.Minute, tainted, nil, "", lacking, "LiveNode n1 4", 1},
		"without startup taint":       {31 * time.Minute, nil, nil, lacking, "", "Learned past 4", 2},
		"the other driver is half up": {31 * time.Minute, tainted, halfOfIt("n1"), "driver dra.net has published 1 of the 2 slices of pool nics", "", "Learned past 4", 2},
	} {
		t.Run(name, func(t *testing.T) {
			var o objects
			changes := []func(*corev1.Node, []*resourceapi.ResourceSlice){}
			if test.change != nil {
				changes = append(changes, test.change)
			}
			o.machine(t, g, "g6.12xlarge", "n1", test.age, changes...)
			if test.other != nil {
				o.slices.Items = append(o.slices.Items, *test.other)
			}
			state := look(&o, g).GroupStates[0]
			node := state.Nodes[0]
			if got := strings.Join(node.Missing, "; "); got != test.missing {
				t.Errorf("it lacks %q, want %q", got, test.missing)
			}
			if got := strings.Join(node.Waived, "; "); got != test.waived {
				t.Errorf("waived is %q, want %q", got, test.waived)
			}
			drivers := map[string]bool{}
			for _, slice := range state.Template.Slices {
				drivers[slice.Spec.Driver] = true
			}
			if got := describe(state.Template); got != test.template || len(drivers) != test.drivers {
				t.Errorf("the template is %q with %d drivers, want %q with %d", got, len(drivers), test.template, test.drivers)
			}
		})
	}
}

func TestWhatWasWorkedOutIsKeptForTheNextLook(t *testing.T) {
	g := kept(t, testGroup("g", pool("g"), typed("g6.12xlarge")), "g6.12xlarge", "")
	var o objects
	o.machine(t, g, "g6.12xlarge", "n1", time.Minute)
	o.groups.Items = append(o.groups.Items, *g)
	memo := NewMemo()
	at := func(now time.Time) *template.Template {
		defer memo.endRead()
		return newReading(&o, Options{Driver: testDriver, Now: now, Memo: memo}).view().GroupStates[0].Template
	}
	first := at(t0)
	if second := at(t0.Add(time.Hour)); second != first {
		t.Error("the same node is learned from anew")
	}
	o.nodes.Items[0].ResourceVersion = "2"
	if third := at(t0.Add(time.Hour)); third == first {
		t.Error("a node that has changed is not learned from anew")
	}
}

func TestWhatIsLearnedAgainHasItsOldDate(t *testing.T) {
	g := testGroup("g", pool("g"), typed("g6.12xlarge"))
	var o objects
	o.machine(t, g, "g6.12xlarge", "n1", time.Minute)
	first := look(&o, g).GroupStates[0].Template
	data, err := template.Encode(first)
	if err != nil {
		t.Fatal(err)
	}
	g.Status.Template = &v1alpha1.TemplateStatus{Source: v1alpha1.SourceLiveNode, Node: "n1", Data: data}
	o.groups.Items[0] = *g
	again := newReading(&o, Options{Driver: testDriver, Now: t0.Add(time.Hour), Memo: NewMemo()}).view().GroupStates[0].Template
	if !again.LearnedAt.Equal(first.LearnedAt) || again.Source != v1alpha1.SourceLiveNode {
		t.Errorf("what is kept is of %v (%s), and what is learned again of %v (%s)", first.LearnedAt, first.Source, again.LearnedAt, again.Source)
	}
	o.nodes.Items[0].Labels["new"] = "label"
	changed := newReading(&o, Options{Driver: testDriver, Now: t0.Add(time.Hour), Memo: NewMemo()}).view().GroupStates[0].Template
	if changed.LearnedAt.Equal(first.LearnedAt) {
		t.Error("a node that has changed is kept with its old date")
	}
}
