package autoscaler

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// statusText is of the form that Cluster Autoscaler writes since 1.30.
const statusText = `autoscalerStatus: Running
clusterWide:
  health:
    nodeCounts:
      registered:
        ready: 4
        total: 4
    status: Healthy
  scaleUp:
    status: NoActivity
nodeGroups:
- health:
    cloudProviderTarget: 2
    lastProbeTime: "2026-09-15T04:05:52Z"
    maxSize: 5
    minSize: 0
    nodeCounts:
      longUnregistered: 0
      registered:
        notStarted: 1
        ready: 1
        total: 2
        unready:
          resourceUnready: 0
          total: 0
    status: Healthy
  name: eks-p5-7ec0a1b2-11aa-22bb-33cc-0123456789ab
  scaleUp:
    backoffInfo: {}
    status: InProgress
- health:
    maxSize: 3
  name: p4d
  scaleUp:
    backoffInfo:
      errorCode: OutOfCapacity
      errorMessage: no p4d.24xlarge in us-east-1a
    status: Backoff
  somethingNew: [1, 2]
time: 2026-09-15 04:05:52.354884346 +0000 UTC
`

func statusMap(text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: StatusName},
		Data:       map[string]string{"status": text},
	}
}

func TestStatusIsRead(t *testing.T) {
	got := parse(statusMap(statusText))
	want := Status{
		Updated: time.Date(2026, 9, 15, 4, 5, 52, 354884346, time.UTC),
		Groups: map[string]Group{
			"eks-p5-7ec0a1b2-11aa-22bb-33cc-0123456789ab": {Ready: 1, NotStarted: 1, Target: 2, Max: 5},
			"p4d": {Backoff: true, Code: "OutOfCapacity", Message: "OutOfCapacity: no p4d.24xlarge in us-east-1a", Max: 3},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("- is expected:\n%s", diff)
	}
}

func TestAutoscalerThatCannotBeRead(t *testing.T) {
	annotated := statusMap("Cluster-autoscaler status at 2023-08-17 19:05:01.23 +0000 UTC:\nCluster-wide:\n  Health:      Healthy (ready=1)\n")
	annotated.Annotations = map[string]string{annotationUpdated: "2023-08-17 19:05:01.231858842 +0000 UTC m=+525.142735557"}
	for name, test := range map[string]struct {
		status  *corev1.ConfigMap
		problem string
		updated time.Time
	}{
		"nothing in it":     {statusMap(""), "", time.Time{}},
		"the text of old":   {annotated, "is not the YAML that Cluster Autoscaler writes since 1.30", time.Date(2023, 8, 17, 19, 5, 1, 231858842, time.UTC)},
		"groups of a kind":  {statusMap("nodeGroups: 7"), "is not the YAML", time.Time{}},
		"longer than it is": {statusMap(strings.Repeat("#", maxStatus+1)), "which is more than a ConfigMap holds", time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := parse(test.status)
			if !strings.Contains(got.Problem, test.problem) || (got.Problem == "") != (test.problem == "") {
				t.Errorf("problem %q, want one with %q", got.Problem, test.problem)
			}
			if !got.Updated.Equal(test.updated) || len(got.Groups) > 0 {
				t.Errorf("updated at %s with %d groups, want %s and none", got.Updated, len(got.Groups), test.updated)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(statusText)
	f.Add("time: x\nnodeGroups: [{name: a, health: {maxSize: 99999999999999999999}}]")
	f.Add("a: &a [x, x]\nb: &b [*a, *a]\nnodeGroups: *b\n")
	f.Add("time: {}\n")
	f.Fuzz(func(t *testing.T, text string) {
		a := parse(statusMap(text))
		if a.Problem != "" && len(a.Groups) > 0 {
			t.Errorf("groups were read of a status that cannot be read: %s", a.Problem)
		}
		for name, g := range a.Groups {
			if n := utf8.RuneCountInString(g.Message); n > maxMessage {
				t.Errorf("the message of %q has %d characters", name, n)
			}
		}
	})
}

func eksGroup(name, nodegroup string) *v1alpha1.GPUNodeGroup {
	g := &v1alpha1.GPUNodeGroup{ObjectMeta: metav1.ObjectMeta{Name: name}}
	g.Spec.Provider.EKS = &v1alpha1.EKSNodegroup{Nodegroup: nodegroup}
	return g
}

func TestGroupsByTheAutoscalersNames(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const uuid = "-7ec0a1b2-11aa-22bb-33cc-0123456789ab"
	selector := &v1alpha1.GPUNodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
	selector.Spec.Provider.NodeSelector = map[string]string{"pool": "gpus"}
	for name, test := range map[string]struct {
		group *v1alpha1.GPUNodeGroup
		known string
		found bool
	}{
		"exact":                       {eksGroup("mine", "p5"), "p5", true},
		"of EKS":                      {eksGroup("mine", "p5"), "eks-p5" + uuid, true},
		"one whose name is longer":    {eksGroup("mine", "p5"), "eks-p5-spot" + uuid, false},
		"one with no UUID":            {eksGroup("mine", "p5"), "eks-p5-7ec0a1b2", false},
		"by the name of the object":   {eksGroup("mine", "p5"), "mine", true},
		"by the value of the label":   {selector, "gpus", true},
		"another with like beginning": {selector, "gpus-2", false},
	} {
		t.Run(name, func(t *testing.T) {
			a := Status{Updated: now, Groups: map[string]Group{test.known: {Max: 7}}}
			if g, ok := a.Of(test.group, now); ok != test.found || ok && g.Max != 7 {
				t.Errorf("%s was found as %q: %v, want %v", test.group.Name, test.known, ok, test.found)
			}
			if _, ok := a.Of(test.group, now.Add(Fresh+time.Second)); ok {
				t.Error("a status of long ago counts")
			}
		})
	}
}
