package pair

import (
	"strings"
	"testing"
	"time"

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
		ObjectMeta: metav1.ObjectMeta{Namespace: AutoscalerNamespace, Name: AutoscalerStatus},
		Data:       map[string]string{"status": text},
	}
}

func TestReadAutoscaler(t *testing.T) {
	got := ReadAutoscaler(statusMap(statusText))
	want := Autoscaler{
		Updated: time.Date(2026, 9, 15, 4, 5, 52, 354884346, time.UTC),
		Groups: map[string]AutoscalerGroup{
			"eks-p5-7ec0a1b2-11aa-22bb-33cc-0123456789ab": {Ready: 1, Target: 2, Max: 5},
			"p4d": {Backoff: true, Message: "OutOfCapacity: no p4d.24xlarge in us-east-1a", Max: 3},
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
		"none":              {nil, "", time.Time{}},
		"nothing in it":     {statusMap(""), "", time.Time{}},
		"the text of old":   {annotated, "is not the YAML that Cluster Autoscaler writes since 1.30", time.Date(2023, 8, 17, 19, 5, 1, 231858842, time.UTC)},
		"groups of a kind":  {statusMap("nodeGroups: 7"), "is not the YAML", time.Time{}},
		"longer than it is": {statusMap(strings.Repeat("#", maxStatus+1)), "which is more than a ConfigMap holds", time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := ReadAutoscaler(test.status)
			if !strings.Contains(got.Problem, test.problem) || (got.Problem == "") != (test.problem == "") {
				t.Errorf("problem %q, want one with %q", got.Problem, test.problem)
			}
			if !got.Updated.Equal(test.updated) || len(got.Groups) > 0 {
				t.Errorf("updated at %s with %d groups, want %s and none", got.Updated, len(got.Groups), test.updated)
			}
		})
	}
}

func FuzzReadAutoscaler(f *testing.F) {
	f.Add(statusText)
	f.Add("time: x\nnodeGroups: [{name: a, health: {maxSize: 99999999999999999999}}]")
	f.Add("a: &a [x, x]\nb: &b [*a, *a]\nnodeGroups: *b\n")
	f.Add("time: {}\n")
	f.Fuzz(func(t *testing.T, text string) {
		a := ReadAutoscaler(statusMap(text))
		if a.Problem != "" && len(a.Groups) > 0 {
			t.Errorf("groups were read of a status that cannot be read: %s", a.Problem)
		}
		for name, g := range a.Groups {
			if len(g.Message) > maxMessage {
				t.Errorf("the message of %q is %d bytes long", name, len(g.Message))
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
	now := epoch
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
			a := Autoscaler{Updated: now, Groups: map[string]AutoscalerGroup{test.known: {Max: 7}}}
			if g, ok := a.of(test.group, now); ok != test.found || ok && g.Max != 7 {
				t.Errorf("%s was found as %q: %v, want %v", test.group.Name, test.known, ok, test.found)
			}
			if _, ok := a.of(test.group, now.Add(statusFresh+time.Second)); ok {
				t.Error("a status of long ago counts")
			}
		})
	}
}

func TestClosed(t *testing.T) {
	now := epoch
	backing := Autoscaler{Updated: now, Groups: map[string]AutoscalerGroup{"p5": {Backoff: true, Message: "no machines"}}}
	own := func(after time.Duration) *v1alpha1.Backoff {
		return &v1alpha1.Backoff{Until: metav1.NewTime(now.Add(after)), Failures: 2, Reason: v1alpha1.ReasonScaleUpFailed, Message: "it did not come"}
	}
	for name, test := range map[string]struct {
		backoff    *v1alpha1.Backoff
		pairing    v1alpha1.Pairing
		autoscaler Autoscaler
		want       string
	}{
		"open":                     {nil, v1alpha1.PairingPlaceholder, Autoscaler{}, ""},
		"failed":                   {own(time.Minute), v1alpha1.PairingPlaceholder, Autoscaler{}, "is left alone until 2026-03-01T12:01:00Z after 2 failures in a row: it did not come"},
		"failed long ago":          {own(-time.Minute), v1alpha1.PairingPlaceholder, Autoscaler{}, ""},
		"autoscaler backs off":     {nil, v1alpha1.PairingPlaceholder, backing, "Cluster Autoscaler has backed off from the group: no machines"},
		"not the one who grows it": {nil, v1alpha1.PairingDirect, backing, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := eksGroup("mine", "p5")
			g.Spec.Pairing, g.Status.Backoff = test.pairing, test.backoff
			if got := Closed(g, test.autoscaler, now); got != test.want {
				t.Errorf("closed: %q, want %q", got, test.want)
			}
		})
	}
}

func TestBackoffDoublesAndIsForgotten(t *testing.T) {
	now := epoch
	var b *v1alpha1.Backoff
	for i, want := range []time.Duration{5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 40 * time.Minute, time.Hour, time.Hour} {
		b = fail(b, now, v1alpha1.ReasonScaleUpFailed, strings.Repeat("ö", 400))
		if got := b.Until.Sub(now); got != want {
			t.Errorf("failure %d: for %s, want %s", i+1, got, want)
		}
		if len(b.Message) > maxMessage {
			t.Errorf("the message is %d bytes long", len(b.Message))
		}
		if again := fail(b, now.Add(time.Second), v1alpha1.ReasonScaleUpFailed, "the next of the same attempt"); again != b {
			t.Error("a second failure of one attempt counts")
		}
		now = b.Until.Add(time.Minute)
	}
	if got := remembered(b, b.Until.Add(30*time.Minute), 30*time.Minute); got == nil {
		t.Error("forgotten while the next attempt may still fail")
	}
	if got := remembered(b, b.Until.Add(91*time.Minute), 30*time.Minute); got != nil {
		t.Error("remembered for ever")
	}
	ahead := b.Until.Add(-24 * time.Hour)
	if got := remembered(b, ahead, time.Minute).Until.Sub(ahead); got > backoffMost {
		t.Errorf("a clock that ran ahead closes the group for %s", got)
	}
}
