package view

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
)

// says is Cluster Autoscaler's status with one group.
func says(group autoscaler.Group) *autoscaler.Status {
	return &autoscaler.Status{Updated: t0, Groups: map[string]autoscaler.Group{"g": group}}
}

func paired(by v1alpha1.Pairing, change ...func(*v1alpha1.GPUNodeGroup)) *v1alpha1.GPUNodeGroup {
	group := testGroup("g", pool("g"), change...)
	group.Spec.Pairing = by
	if by == v1alpha1.PairingDirect {
		group.Spec.Provider = v1alpha1.NodeGroupProvider{EKS: &v1alpha1.EKSNodegroup{Cluster: "one", Nodegroup: "g"}}
	}
	return group
}

// bounded is what the planner is told of a group.
func bounded(group *v1alpha1.GPUNodeGroup, o Options) (most *int, closed string) {
	o.Driver, o.Now, o.Memo = testDriver, t0, NewMemo()
	all := &objects{}
	all.groups.Items = append(all.groups.Items, *group)
	r := newReading(all, o)
	r.eks = r.askEKS(context.Background())
	planned := r.view().Groups[0]
	return planned.Max, planned.Closed
}

func TestAGroupIsClosedByItsFailuresAndByTheAutoscalers(t *testing.T) {
	backoff := func(reason string, after time.Duration) func(*v1alpha1.GPUNodeGroup) {
		return func(group *v1alpha1.GPUNodeGroup) {
			group.Status.Backoff = &v1alpha1.Backoff{Until: metav1.NewTime(t0.Add(after)), Failures: 2, Reason: reason, Message: "it did not come"}
		}
	}
	failed, seen := backoff(v1alpha1.ReasonScaleUpFailed, time.Minute), backoff(v1alpha1.ReasonAutoscalerBackedOff, time.Minute)
	over := backoff(v1alpha1.ReasonScaleUpFailed, -time.Minute)
	backing := says(autoscaler.Group{Backoff: true, Message: "no machines"})
	const text = "is left alone until 2026-03-01T12:01:00Z after 2 failures in a row: it did not come"
	for name, test := range map[string]struct {
		group  *v1alpha1.GPUNodeGroup
		status *autoscaler.Status
		want   string
	}{
		"open":                            {paired(v1alpha1.PairingPlaceholder), says(autoscaler.Group{}), ""},
		"failed":                          {paired(v1alpha1.PairingPlaceholder, failed), says(autoscaler.Group{}), text},
		"failed long ago":                 {paired(v1alpha1.PairingPlaceholder, over), says(autoscaler.Group{}), ""},
		"autoscaler backs off":            {paired(v1alpha1.PairingPlaceholder), backing, "Cluster Autoscaler has backed off from the group: no machines"},
		"autoscaler does not any more":    {paired(v1alpha1.PairingPlaceholder, seen), says(autoscaler.Group{}), ""},
		"autoscaler is gone":              {paired(v1alpha1.PairingPlaceholder, seen), &autoscaler.Status{}, ""},
		"autoscaler backed off when seen": {paired(v1alpha1.PairingPlaceholder, seen), nil, "it did not come"},
		"not the one who grows it":        {paired(v1alpha1.PairingDirect, seen), backing, ""},
		"failed at EKS":                   {paired(v1alpha1.PairingDirect, failed), backing, text},
	} {
		t.Run(name, func(t *testing.T) {
			if _, got := bounded(test.group, Options{Autoscaler: test.status}); got != test.want {
				t.Errorf("closed: %q, want %q", got, test.want)
			}
		})
	}
}

func TestTheLeastLimitCounts(t *testing.T) {
	limited := func(spec, seen *int32) func(*v1alpha1.GPUNodeGroup) {
		return func(group *v1alpha1.GPUNodeGroup) { group.Spec.Max, group.Status.ProviderMax = spec, seen }
	}
	three, seven := ptr.To(int32(3)), ptr.To(int32(7))
	five, away := saidByEKS{Max: 5}, saidByEKS{Err: errors.New("no")}
	of := says(autoscaler.Group{Max: 5})
	for name, test := range map[string]struct {
		group   *v1alpha1.GPUNodeGroup
		options Options
		want    int
	}{
		"nothing":                {paired(v1alpha1.PairingPlaceholder), Options{Autoscaler: &autoscaler.Status{}}, 0},
		"the spec alone":         {paired(v1alpha1.PairingPlaceholder, limited(three, nil)), Options{Autoscaler: &autoscaler.Status{}}, 3},
		"the autoscaler alone":   {paired(v1alpha1.PairingPlaceholder), Options{Autoscaler: of}, 5},
		"the autoscaler, less":   {paired(v1alpha1.PairingPlaceholder, limited(seven, three)), Options{Autoscaler: of}, 5},
		"the autoscaler forgets": {paired(v1alpha1.PairingPlaceholder, limited(nil, three)), Options{Autoscaler: says(autoscaler.Group{})}, 0},
		"the autoscaler, seen":   {paired(v1alpha1.PairingPlaceholder, limited(seven, three)), Options{}, 3},
		"EKS alone":              {paired(v1alpha1.PairingDirect), Options{EKS: five}, 5},
		"the spec, less":         {paired(v1alpha1.PairingDirect, limited(three, nil)), Options{EKS: five}, 3},
		"EKS, less":              {paired(v1alpha1.PairingDirect, limited(seven, three)), Options{EKS: five}, 5},
		"EKS does not answer":    {paired(v1alpha1.PairingDirect, limited(seven, nil)), Options{EKS: away}, 7},
		"EKS, seen":              {paired(v1alpha1.PairingDirect, limited(seven, three)), Options{EKS: away}, 3},
		"EKS is not asked":       {paired(v1alpha1.PairingDirect, limited(seven, three)), Options{Autoscaler: of}, 3},
		"nothing makes it grow":  {paired(v1alpha1.PairingObserve, limited(seven, three)), Options{Autoscaler: of, EKS: five}, 7},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := bounded(test.group, test.options)
			if test.want == 0 && got != nil || test.want != 0 && (got == nil || *got != test.want) {
				t.Errorf("the limit is %v, want %d", ptr.Deref(got, 0), test.want)
			}
		})
	}
}

// saidByEKS is an EKS that says the same of each group.
type saidByEKS Nodegroup

func (s saidByEKS) Describe(context.Context, *v1alpha1.GPUNodeGroup) Nodegroup { return Nodegroup(s) }

func TestEKSIsAskedForGroupsThatGrowByItAlone(t *testing.T) {
	all := &objects{}
	twin := paired(v1alpha1.PairingDirect)
	twin.Name = "twin"
	other := testGroup("other", pool("other"))
	alone := paired(v1alpha1.PairingDirect)
	alone.Name, alone.Spec.Provider.EKS.Nodegroup = "alone", "alone"
	for _, group := range []*v1alpha1.GPUNodeGroup{paired(v1alpha1.PairingDirect), twin, other, alone} {
		all.groups.Items = append(all.groups.Items, *group)
	}
	all.nodes.Items = []corev1.Node{*testNode("n", time.Minute, map[string]string{v1alpha1.LabelEKSNodegroup: "alone"})}
	r := newReading(all, Options{EKS: saidByEKS{}})
	r.eks = r.askEKS(t.Context())
	asked := slices.Sorted(maps.Keys(r.eks))
	if len(asked) != 1 || asked[0] != "alone" {
		t.Errorf("EKS is asked for %v, want alone: two others have the same nodes", asked)
	}
}
