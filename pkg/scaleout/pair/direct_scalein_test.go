package pair

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// podOn puts a pod with that kind of owner on a node.
func (c *calling) podOn(node *view.NodeState, owner string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod"}, Spec: corev1.PodSpec{NodeName: node.Object.Name}}
	if owner != "" {
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: owner, Name: "owner", Controller: ptr.To(true)}}
	}
	for i := range c.View.Nodes {
		if c.View.Nodes[i].Object == node.Object {
			c.View.Nodes[i].Pods = append(c.View.Nodes[i].Pods, pod)
		}
	}
	return pod
}

func TestEmptyNodesEnd(t *testing.T) {
	const (
		note     = "note that node node-0 is empty\n"
		cordon   = "cordon node node-0, which is empty\n"
		uncordon = "uncordon node node-0\n"
		end      = "end node node-0, which is empty\n"
		inUse    = "note that node node-0 is in use\n"
	)
	day := 24 * time.Hour
	// Each case has a marked node. EKS's desired size matches.
	for name, test := range map[string]struct {
		step  view.Step
		ago   time.Duration
		given func(*calling)
		want  string
	}{
		"nothing runs there":          {"", 0, func(*calling) {}, note},
		"not for long":                {view.StepEmpty, 9 * time.Minute, func(*calling) {}, ""},
		"for long":                    {view.StepEmpty, 10 * time.Minute, func(*calling) {}, cordon},
		"just cordoned":               {view.StepCordoned, 59 * time.Second, func(*calling) {}, ""},
		"cordoned":                    {view.StepCordoned, time.Minute, func(*calling) {}, end},
		"ends, as was decided":        {view.StepEnding, time.Minute, func(c *calling) { c.demand(1); c.podOn(&c.group().Nodes[0], "") }, "set the size of gpus to 1\n" + end + "in flight: intent 1 to 1\n"},
		"a pod":                       {view.StepEmpty, day, func(c *calling) { c.podOn(&c.group().Nodes[0], "") }, inUse},
		"a pod came after the cordon": {view.StepCordoned, day, func(c *calling) { c.podOn(&c.group().Nodes[0], "ReplicaSet") }, uncordon},
		"pods that belong to nodes": {view.StepEmpty, day, func(c *calling) {
			c.podOn(&c.group().Nodes[0], "DaemonSet")
			c.podOn(&c.group().Nodes[0], "Node")
		}, cordon},
		"a pod that has ended": {view.StepEmpty, day, func(c *calling) {
			c.podOn(&c.group().Nodes[0], "Job").Status.Phase = corev1.PodSucceeded
		}, cordon},
		"a claim": {view.StepEmpty, day, func(c *calling) {
			c.View.Claims = []*resourceapi.ResourceClaim{allocatedOn("node-0")}
		}, inUse},
		"a pod is to go there": {view.StepCordoned, time.Minute, func(c *calling) {
			c.Decision.Kinds = []scaleout.Kind{{Pods: []scaleout.PodDecision{{Outcome: scaleout.FitsNode, Node: "node-0"}}}}
		}, uncordon},
		"a pod is nominated": {view.StepCordoned, time.Minute, func(c *calling) {
			c.View.Nominated.Nodes = map[types.UID]string{"p": "node-0"}
		}, uncordon},
		"headroom is kept there": {view.StepCordoned, time.Minute, func(c *calling) {
			c.Decision.Headroom = []scaleout.HeadroomDecision{{Nodes: []string{"node-0"}}}
		}, uncordon + "keep node node-0 for headroom\n"},
		"an administrator protects it": {view.StepEmpty, day, func(c *calling) {
			c.group().Nodes[0].Object.Annotations[v1alpha1.AnnotationScaleDownDisabled] = "true"
		}, inUse},
		"an administrator has cordoned it": {view.StepEmpty, day, func(c *calling) { c.group().Nodes[0].Object.Spec.Unschedulable = true }, inUse},
		"Cluster Autoscaler ends it":       {view.StepEmpty, day, func(c *calling) { leaving(&c.group().Nodes[0]) }, inUse},
		"it is not Ready":                  {view.StepEmpty, day, func(c *calling) { c.group().Nodes[0].Ready = false }, inUse},
		"it is new": {"", 0, func(c *calling) {
			c.group().Nodes[0].Object.Annotations = map[string]string{v1alpha1.AnnotationScaleDownDisabled: "true", v1alpha1.AnnotationProtected: forClaim}
			view.Hold(c.group().Nodes[0].Object, c.Now)
			c.group().Nodes[0].ReadySince = c.Now.Add(-time.Minute)
		}, ""},
		"spec.min":              {view.StepEmpty, day, func(c *calling) { c.group().Object.Spec.Min = 1 }, ""},
		"EKS's min":             {view.StepEmpty, day, func(c *calling) { c.eks(func(n *view.Nodegroup) { n.Min = 1 }) }, ""},
		"min is raised":         {view.StepCordoned, time.Minute, func(c *calling) { c.group().Object.Spec.Min = 1 }, uncordon},
		"the group grows":       {view.StepEmpty, day, func(c *calling) { c.demand(1) }, "set the size of gpus to 2\nin flight: intent 1 to 2\n"},
		"the group grows again": {view.StepCordoned, time.Minute, func(c *calling) { c.demand(1) }, "set the size of gpus to 2\n" + uncordon + "in flight: intent 1 to 2\n"},
		"a node is on its way": {view.StepEmpty, day, func(c *calling) {
			c.asked("u1", 1, 2, time.Minute)
			c.eks(func(n *view.Nodegroup) { n.Desired = 2 })
		}, "in flight: u1 1 to 2\n"},
		"EKS updates":                    {view.StepEmpty, day, func(c *calling) { c.eks(func(n *view.Nodegroup) { n.Status = "UPDATING" }) }, ""},
		"another client lowers the size": {view.StepEmpty, day, func(c *calling) { c.eks(func(n *view.Nodegroup) { n.Desired = 0 }) }, ""},
		"one at a time": {view.StepEmpty, day, func(c *calling) {
			mark(c.node(day, true), view.StepEnding, time.Hour)
			c.eks(func(n *view.Nodegroup) { n.Desired = 1 })
		}, "end node node-1, which is empty\n"},
		"the one that is empty for longer": {view.StepEmpty, time.Hour, func(c *calling) {
			mark(c.node(day, true), view.StepEmpty, 2*time.Hour)
			c.eks(func(n *view.Nodegroup) { n.Desired = 2 })
		}, "cordon node node-1, which is empty\n"},
		"a tenth of the group": {view.StepEmpty, time.Hour, func(c *calling) {
			for range 19 {
				node := c.node(day, true)
				c.podOn(node, "")
			}
			mark(&c.group().Nodes[1], view.StepEmpty, time.Hour)
			mark(&c.group().Nodes[2], view.StepEmpty, time.Hour)
			c.View.Nodes[1].Pods, c.View.Nodes[2].Pods = nil, nil
			c.eks(func(n *view.Nodegroup) { n.Max, n.Desired = 20, 20 })
		}, cordon + "cordon node node-1, which is empty\n"},
		"no EC2 instance": {view.StepEmpty, day, func(c *calling) { c.group().Nodes[0].Object.Spec.ProviderID = "kind://docker/x" },
			"does not end: node node-0 has been empty for long and does not end, because its spec.providerID \"kind://docker/x\" is no EC2 instance: end it yourself, or set spec.scaleInAfter to 0s\n"},
		"switched off":                       {view.StepCordoned, day, func(c *calling) { c.group().Object.Spec.ScaleInAfter = &metav1.Duration{} }, uncordon},
		"switched off, ends":                 {view.StepEnding, time.Minute, func(c *calling) { c.group().Object.Spec.ScaleInAfter = &metav1.Duration{} }, uncordon},
		"ends, uncordoned":                   {view.StepEnding, time.Minute, func(c *calling) { c.group().Nodes[0].Object.Spec.Unschedulable = false }, uncordon},
		"cordoned, uncordoned":               {view.StepCordoned, day, func(c *calling) { c.group().Nodes[0].Object.Spec.Unschedulable = false }, uncordon},
		"another pairing, ends":              {view.StepEnding, time.Minute, func(c *calling) { c.group().Object.Spec.Pairing = v1alpha1.PairingObserve }, uncordon},
		"an hour":                            {view.StepEmpty, 59 * time.Minute, func(c *calling) { c.group().Object.Spec.ScaleInAfter = &metav1.Duration{Duration: time.Hour} }, ""},
		"beside an autoscaler":               {view.StepEmpty, day, func(c *calling) { c.Autoscaler = autoscaler.Status{Groups: map[string]autoscaler.Group{}} }, inUse},
		"beside an autoscaler that restarts": {view.StepEmpty, day, func(c *calling) { c.group().Autoscaler = &v1alpha1.AutoscalerReport{} }, inUse},
		"beside an autoscaler, wanted": {view.StepEmpty, day, func(c *calling) {
			c.Autoscaler = autoscaler.Status{Groups: map[string]autoscaler.Group{}}
			c.group().Object.Spec.ScaleInAfter = &metav1.Duration{Duration: time.Hour}
		}, cordon},
		"another pairing": {view.StepCordoned, day, func(c *calling) { c.group().Object.Spec.Pairing = v1alpha1.PairingObserve }, uncordon},
		"EKS does not answer": {view.StepCordoned, day, func(c *calling) { c.View.Nodegroups = nil }, uncordon +
			"EKSUnavailable: EKS was not asked about node group gpus of cluster one: see whether the controller has an AWS region and credentials by IRSA or Pod Identity\n"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCalling()
			c.group().Object.Spec.ScaleInAfter = nil
			node := c.node(day, true)
			if test.step != "" {
				mark(node, test.step, test.ago)
			}
			c.eks(func(n *view.Nodegroup) { n.Desired = 1 })
			if test.step == view.StepEnding {
				c.eks(func(n *view.Nodegroup) { n.Desired = 0 })
			}
			test.given(c)
			result := c.decide()
			got := story(result)
			if problem := result.Status[callingGroup].ScaleIn.Problem; problem != "" {
				got += "does not end: " + problem + "\n"
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("decided (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMarksOfNodesWithoutAGroupAreRemoved(t *testing.T) {
	for _, step := range []view.Step{view.StepCordoned, view.StepEnding} {
		c := newCalling()
		mark(c.node(time.Hour, true), step, time.Hour)
		c.View.Nodes[0].Group = ""
		c.View.GroupStates = nil
		if got, want := story(c.decide()), "uncordon node node-0\n"; got != want {
			t.Errorf("%s: decided %q, want %q", step, got, want)
		}
	}
}
