package view

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
)

// copyLists fills a list of one kind.
func copyLists(list client.ObjectList, from *objects) error {
	switch list := list.(type) {
	case *corev1.PodList:
		list.Items = slices.Clone(from.pods.Items)
	case *corev1.NodeList:
		list.Items = slices.Clone(from.nodes.Items)
	case *resourceapi.ResourceSliceList:
		list.Items = slices.Clone(from.slices.Items)
	case *resourceapi.ResourceClaimList:
		list.Items = slices.Clone(from.claims.Items)
	case *resourceapi.ResourceClaimTemplateList:
		list.Items = slices.Clone(from.claimTemplates.Items)
	case *resourceapi.DeviceClassList:
		list.Items = slices.Clone(from.classes.Items)
	case *resourceapi.DeviceTaintRuleList:
		list.Items = slices.Clone(from.taintRules.Items)
	case *appsv1.DaemonSetList:
		list.Items = slices.Clone(from.daemonSets.Items)
	case *v1alpha1.GPUNodeGroupList:
		list.Items = slices.Clone(from.groups.Items)
	case *v1alpha1.GPUHeadroomList:
		list.Items = slices.Clone(from.headrooms.Items)
	case *v1alpha1.GPUBudgetList:
		list.Items = slices.Clone(from.budgets.Items)
	case *v1alpha1.GPUPolicyList:
		list.Items = slices.Clone(from.policies.Items)
	case *v1alpha1.GPUNodeList:
		list.Items = slices.Clone(from.gpuNodes.Items)
	default:
		return fmt.Errorf("a %T is not expected", list)
	}
	return nil
}

// failing fails for one kind of list.
type failing struct {
	listed
	kind string
	err  error
}

func (f failing) List(ctx context.Context, list client.ObjectList, o ...client.ListOption) error {
	if strings.Contains(fmt.Sprintf("%T", list), f.kind) {
		return f.err
	}
	return f.listed.List(ctx, list, o...)
}

func TestWhatCannotBeListedIsNamed(t *testing.T) {
	denied := errors.New("denied")
	missing := &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "resource.k8s.io", Kind: "DeviceTaintRule"}}
	for name, test := range map[string]struct {
		kind string
		err  error
		want string
	}{
		"pods":                      {"PodList", denied, "list pods of the whole cluster: denied"},
		"rules":                     {"DeviceTaintRuleList", denied, "list devicetaintrules of the whole cluster: denied"},
		"rules that are not there":  {"DeviceTaintRuleList", fmt.Errorf("wrapped: %w", missing), ""},
		"groups that are not there": {"GPUNodeGroupList", missing, "list gpunodegroups"},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := Read(t.Context(), failing{listed{objects: &objects{}}, test.kind, test.err}, Options{Driver: testDriver, Now: t0})
			if test.want == "" {
				if err != nil || v == nil {
					t.Errorf("a kind that is not served ends the look: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error is %v, want %q", err, test.want)
			}
		})
	}
}

func TestTheSnapshotIsOfTheWholeCluster(t *testing.T) {
	g := testGroup("g", pool("g"), typed("g6.12xlarge"), func(g *v1alpha1.GPUNodeGroup) {
		limit := int32(7)
		g.Spec.Max = &limit
	})
	var o objects
	o.machine(t, g, "g6.12xlarge", "n1", 60e9, tainted)
	o.nodes.Items = append(o.nodes.Items, *testNode("cpu", 60e9, nil))
	o.groups.Items = append(o.groups.Items, *g)
	o.pods.Items = []corev1.Pod{
		testPod("waits", withClaim), testPod("runs", on("cpu")),
		*testPlaceholder("g", "coming", 30e9, ""), *testPlaceholder("g", "landed", 120e9, "n1"),
	}
	o.daemonSets.Items = []appsv1.DaemonSet{{}}
	said := autoscaler.Status{Updated: t0, Groups: map[string]autoscaler.Group{"g": {Target: 5}}}
	v, err := Read(t.Context(), listed{objects: &o}, Options{Driver: testDriver, Now: t0, Autoscaler: &said})
	if err != nil {
		t.Fatal(err)
	}
	expectPods(t, "pending", v.Pending, "waits")
	expectPods(t, "placeholders", v.Placeholders, "coming landed")
	expectPods(t, "on cpu", v.Nodes[1].Pods, "runs")
	expectPods(t, "on n1", v.Nodes[0].Pods, "")
	group := v.Groups[0]
	if group.Size != 2 || group.Upcoming != 1 || *group.Max != 7 || len(group.Pods) != 1 || group.Closed != "" {
		t.Errorf("the group has size %d, %d upcoming, max %d, %d pods of DaemonSets, closed %q; want 2, 1, 7, 1 and open",
			group.Size, group.Upcoming, *group.Max, len(group.Pods), group.Closed)
	}
	if group.Foreign != 3 {
		t.Errorf("%d nodes are coming that were not asked for here, want 3: Cluster Autoscaler wants 5", group.Foreign)
	}
	if !slices.Equal(group.UpcomingFor, []string{"k"}) {
		t.Errorf("the node that comes is for %q, and its placeholder says k", group.UpcomingFor)
	}
	if got := v.Nodes[0].For; got != "k" {
		t.Errorf("the node that starts is for %q, and the placeholder on it says k", got)
	}
	if v.Nodes[0].Group != "g" || !v.Nodes[0].Starting || v.Nodes[1].Group != "" || v.Nodes[1].Starting {
		t.Errorf("the nodes are %+v", v.Nodes)
	}
}
