package pair

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// calling is a situation with one group of pairing direct.
type calling struct {
	Situation
}

const callingGroup = "gpus"

func newCalling() *calling {
	group := &v1alpha1.GPUNodeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: callingGroup},
		Spec: v1alpha1.GPUNodeGroupSpec{
			Provider:         v1alpha1.NodeGroupProvider{EKS: &v1alpha1.EKSNodegroup{Cluster: "one", Nodegroup: callingGroup}},
			Pairing:          v1alpha1.PairingDirect,
			ProvisionTimeout: metav1.Duration{Duration: 20 * time.Minute},
			ScaleInAfter:     &metav1.Duration{},
		},
	}
	return &calling{Situation{
		Now: epoch,
		View: &view.View{
			GroupStates: []view.Group{{Object: group, Template: &template.Template{Source: v1alpha1.SourceLearned}}},
			Nodegroups:  map[string]view.Nodegroup{callingGroup: {Max: 5, Status: "ACTIVE"}},
		},
	}}
}

func (c *calling) group() *view.Group { return &c.View.GroupStates[0] }

func (c *calling) status() *v1alpha1.GPUNodeGroupStatus { return &c.group().Object.Status }

// demand demands nodes.
func (c *calling) demand(nodes int) {
	growth := scaleout.Growth{Group: callingGroup}
	for range nodes {
		growth.Nodes = append(growth.Nodes, scaleout.NewNode{Kinds: []string{"k1"}})
	}
	c.Decision.Growth = []scaleout.Growth{growth}
}

// eks changes EKS's answer.
func (c *calling) eks(change func(*view.Nodegroup)) {
	n := c.View.Nodegroups[callingGroup]
	change(&n)
	c.View.Nodegroups[callingGroup] = n
}

// node adds a node of that age. An incomplete one lacks devices.
func (c *calling) node(ago time.Duration, isComplete bool) *view.NodeState {
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: fmt.Sprintf("node-%d", len(c.group().Nodes)), CreationTimestamp: metav1.NewTime(c.Now.Add(-ago)),
	}}
	object.Spec.ProviderID = "aws:///ap-northeast-2a/i-" + object.Name
	state := view.NodeState{Object: object, Ready: true, ReadySince: c.Now.Add(-ago)}
	if !isComplete {
		state.Missing = []string{"pool gpus has 0 of 8 devices"}
	}
	slice := &resourceapi.ResourceSlice{}
	slice.Spec.Driver, slice.Spec.Pool.Name = "gpu.mica.gpu", object.Name
	state.Slices = []*resourceapi.ResourceSlice{slice}
	c.group().Nodes = append(c.group().Nodes, state)
	c.View.Nodes = append(c.View.Nodes, scaleout.Node{Object: object, Group: callingGroup})
	return &c.group().Nodes[len(c.group().Nodes)-1]
}

// leaving marks a node that Cluster Autoscaler is about to end.
func leaving(node *view.NodeState) {
	node.Object.Spec.Taints = []corev1.Taint{{Key: template.TaintToBeDeleted, Effect: corev1.TaintEffectNoSchedule}}
}

// mark sets the step of a node's end, and how long ago it began.
func mark(node *view.NodeState, step view.Step, ago time.Duration) {
	metav1.SetMetaDataAnnotation(&node.Object.ObjectMeta, v1alpha1.AnnotationScaleIn, view.Mark{Step: step, Since: epoch.Add(-ago)}.String())
	if node.Object.Spec.Unschedulable = view.MarkOf(node.Object).Cordons(); node.Object.Spec.Unschedulable {
		view.Hold(node.Object, epoch)
	}
}

// asked adds a scale-up in flight of that age.
func (c *calling) asked(id string, nodes, target int32, ago time.Duration) {
	c.status().InFlight = append(c.status().InFlight, v1alpha1.InFlight{ID: id, Kind: "k1", Nodes: nodes, Target: target, Since: metav1.NewTime(c.Now.Add(-ago))})
}

func (c *calling) decide() Result { return Decide(c.Situation) }

func allocatedOn(node string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{Driver: "gpu.mica.gpu", Pool: node, Device: "gpu-0"}}},
	}}}
}

// story is a decision as text.
func story(r Result) string {
	var b strings.Builder
	for _, a := range r.Actions {
		fmt.Fprintln(&b, a)
	}
	status := r.Status[callingGroup]
	for _, e := range status.InFlight {
		fmt.Fprintf(&b, "in flight: %s %d to %d\n", e.ID, e.Nodes, e.Target)
	}
	if status.Backoff != nil {
		fmt.Fprintf(&b, "backoff %d: %s\n", status.Backoff.Failures, status.Backoff.Message)
	}
	if status.NotReady != "" {
		fmt.Fprintf(&b, "%s: %s\n", status.NotReady, status.Message)
	}
	return b.String()
}

// stories are decisions by name: what is given, and the story of the decision.
type stories map[string]struct {
	given func(*calling)
	want  string
}

func (s stories) run(t *testing.T) {
	for name, test := range s {
		t.Run(name, func(t *testing.T) {
			c := newCalling()
			test.given(c)
			if diff := cmp.Diff(test.want, story(c.decide())); diff != "" {
				t.Errorf("decided (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDirectGrows(t *testing.T) {
	most := func(n int32) *int32 { return &n }
	stories{
		"from nothing": {func(c *calling) { c.demand(2) }, "set the size of gpus to 2\nin flight: intent 2 to 2\n"},
		"no demand":    {func(c *calling) {}, ""},
		"beside nodes": {func(c *calling) {
			c.node(time.Hour, true)
			c.eks(func(n *view.Nodegroup) { n.Desired = 1 })
			c.demand(1)
		}, "set the size of gpus to 2\nin flight: intent 1 to 2\n"},
		"up to EKS's max": {func(c *calling) { c.demand(9) }, "set the size of gpus to 5\nin flight: intent 5 to 5\n"},
		"up to spec.max": {func(c *calling) {
			c.group().Object.Spec.Max = most(2)
			c.demand(9)
		}, "set the size of gpus to 2\nin flight: intent 2 to 2\n"},
		"at spec.max": {func(c *calling) {
			c.group().Object.Spec.Max = most(0)
			c.demand(1)
		}, ""},
		"EKS wants more already": {func(c *calling) {
			c.eks(func(n *view.Nodegroup) { n.Desired = 3 })
			c.demand(1)
		}, "in flight: size-3-at-1772366400 1 to 3\n"},
		"EKS wants more, and some": {func(c *calling) {
			c.eks(func(n *view.Nodegroup) { n.Desired = 1 })
			c.node(time.Hour, true)
			c.asked("u1", 1, 2, time.Minute)
			c.eks(func(n *view.Nodegroup) { n.Desired = 2 })
			c.demand(2)
		}, "set the size of gpus to 4\nin flight: u1 1 to 2\nin flight: intent 2 to 4\n"},
		"beside a node that ends": {func(c *calling) {
			c.node(time.Hour, true).Object.DeletionTimestamp = &metav1.Time{Time: c.Now}
			c.eks(func(n *view.Nodegroup) { n.Max = 1 })
			c.demand(1)
		}, "set the size of gpus to 1\nin flight: intent 1 to 1\n"},
		"beside a node that ends and is replaced": {func(c *calling) {
			c.node(time.Hour, true).Object.DeletionTimestamp = &metav1.Time{Time: c.Now}
			c.eks(func(n *view.Nodegroup) { n.Desired = 1 })
			c.demand(1)
		}, "in flight: size-1-at-1772366400 1 to 1\n"},
		"beside a node that is about to end": {func(c *calling) {
			leaving(c.node(time.Hour, true))
			c.eks(func(n *view.Nodegroup) { n.Desired = 1 })
			c.demand(1)
		}, "set the size of gpus to 2\nin flight: intent 1 to 2\n"},
		"beside a node that EKS wants no more": {func(c *calling) {
			leaving(c.node(time.Hour, true))
			c.demand(1)
		}, "set the size of gpus to 1\nin flight: intent 1 to 1\n"},
		"while EKS updates": {func(c *calling) {
			c.eks(func(n *view.Nodegroup) { n.Status = "UPDATING" })
			c.demand(1)
		}, "EKSUpdating: EKS updates node group gpus of cluster one, which can take hours, and changes its size only after that: wait until the update is over\n"},
		"while EKS updates, by the Auto Scaling group": {func(c *calling) {
			c.eks(func(n *view.Nodegroup) { n.Status, n.ScalingGroup = "UPDATING", "eks-gpus-0" })
			c.demand(1)
		}, "set the size of gpus to 1\nin flight: intent 1 to 1\n"},
		"while EKS updates, without that right": {func(c *calling) {
			c.eks(func(n *view.Nodegroup) {
				n.Status, n.ScalingGroup, n.ScalingRefused = "UPDATING", "eks-gpus-0", "AWS denies autoscaling:SetDesiredCapacity"
			})
			c.demand(1)
		}, "EKSUpdating: EKS updates node group gpus of cluster one, which can take hours, and changes its size only after that: wait until the update is over, or let the controller set the size of Auto Scaling group eks-gpus-0 meanwhile, which AWS refused: AWS denies autoscaling:SetDesiredCapacity\n"},
		"while EKS does what it was asked for": {func(c *calling) {
			c.asked("u1", 1, 1, time.Minute)
			c.eks(func(n *view.Nodegroup) { n.Status, n.Update, n.ScalingGroup = "UPDATING", "u1", "eks-gpus-0" })
			c.demand(1)
		}, "in flight: u1 1 to 1\n"},
		"while EKS replaces the nodes of a full group": {func(c *calling) {
			c.node(time.Hour, true)
			c.node(time.Minute, true)
			c.eks(func(n *view.Nodegroup) { n.Status, n.ScalingGroup, n.Max, n.Desired = "UPDATING", "eks-gpus-0", 1, 1 })
			c.demand(1)
		}, "EKSUpdating: EKS updates node group gpus of cluster one, which can take hours, and changes its size only after that: wait until the update is over\n"},
		"up to min": {func(c *calling) {
			c.node(time.Hour, true)
			c.group().Object.Spec.Min = 3
			c.eks(func(n *view.Nodegroup) { n.Desired = 1 })
			c.demand(1)
		}, "set the size of gpus to 3\nin flight: intent 2 to 3\n"},
		"up to min without demand": {func(c *calling) { c.group().Object.Spec.Min = 1 },
			"set the size of gpus to 1\nin flight: intent 1 to 1\n"},
		"not up to min under a budget": {func(c *calling) {
			c.group().Object.Spec.Min = 1
			c.View.Budgets = []scaleout.Budget{{Namespaces: []string{"a"}}, {}}
		}, ""},
		"up to min under a budget of others": {func(c *calling) {
			c.group().Object.Spec.Min = 1
			c.View.Budgets = []scaleout.Budget{{Namespaces: []string{"a"}}}
		}, "set the size of gpus to 1\nin flight: intent 1 to 1\n"},
		"beside a node that we end": {func(c *calling) {
			c.group().Object.Spec.ScaleInAfter = nil
			mark(c.node(time.Hour, true), view.StepEnding, time.Minute)
			c.eks(func(n *view.Nodegroup) { n.Max = 1 })
			c.demand(1)
		}, "set the size of gpus to 1\nend node node-0, which is empty\nin flight: intent 1 to 1\n"},
		"a self-managed group": {func(c *calling) {
			c.group().Object.Spec.Provider = v1alpha1.NodeGroupProvider{AutoScalingGroup: "gpus-asg", NodeSelector: map[string]string{"pool": "gpus"}}
			c.eks(func(n *view.Nodegroup) { n.Status, n.ScalingGroup = "", "gpus-asg" })
			c.demand(2)
		}, "set the size of gpus to 2\nin flight: intent 2 to 2\n"},
		"a self-managed group that goes": {func(c *calling) {
			c.group().Object.Spec.Provider = v1alpha1.NodeGroupProvider{AutoScalingGroup: "gpus-asg"}
			c.eks(func(n *view.Nodegroup) { n.Status = "Delete in progress" })
			c.demand(1)
		}, "EKSUnavailable: Auto Scaling group gpus-asg is Delete in progress at EC2 Auto Scaling: see what is wrong with it there\n"},
		"on a prediction, one after the other": {func(c *calling) {
			c.group().Template.Source = v1alpha1.SourceCatalogue
			c.eks(func(n *view.Nodegroup) { n.Desired = 1 })
			c.asked("u1", 1, 1, time.Minute)
			c.demand(1)
		}, "in flight: u1 1 to 1\n"},
		"during a backoff": {func(c *calling) {
			c.status().Backoff = fail(nil, c.Now.Add(-time.Minute), v1alpha1.ReasonScaleUpFailed, "no capacity")
			c.demand(1)
		}, "backoff 1: no capacity\n"},
		"after a backoff": {func(c *calling) {
			c.status().Backoff = fail(nil, c.Now.Add(-6*time.Minute), v1alpha1.ReasonScaleUpFailed, "no capacity")
			c.demand(1)
		}, "set the size of gpus to 1\nin flight: intent 1 to 1\nbackoff 1: no capacity\n"},
		"beyond EKS's max": {func(c *calling) {
			c.eks(func(n *view.Nodegroup) { n.Max, n.Desired = 1, 1 })
			c.node(time.Hour, true)
			c.demand(1)
		}, "leave gpus alone until 12:05:00: ScaleUpFailed\nbackoff 1: the group has 1 nodes, or will have, and its maxSize at EKS is 1: raise maxSize\n"},
		"EKS cannot bring what it wants": {func(c *calling) {
			c.eks(func(n *view.Nodegroup) {
				n.Desired, n.Issue, n.Status = 1, "AsgInstanceLaunchFailures: none left", "DEGRADED"
			})
			c.demand(1)
		}, "leave gpus alone until 12:05:00: ScaleUpFailed\nbackoff 1: EKS has been asked for 1 nodes already, and 0 have come: AsgInstanceLaunchFailures: none left; fix that, or if AWS has no machines, wait or declare a group with another instance type, zone or capacityType; the desired size stays 1: lower it if the nodes are not wanted any more\n"},
		"an old complaint": {func(c *calling) {
			c.eks(func(n *view.Nodegroup) { n.Issue, n.Status = "AsgInstanceLaunchFailures: none left", "DEGRADED" })
			c.demand(1)
		}, "set the size of gpus to 1\nin flight: intent 1 to 1\n"},
		"never on doubt": {func(c *calling) {
			c.eks(func(n *view.Nodegroup) { n.Err = errors.New("AWS denies eks:DescribeNodegroup") })
			c.asked("u1", 1, 1, time.Hour)
			c.demand(1)
		}, "in flight: u1 1 to 1\nEKSUnavailable: AWS denies eks:DescribeNodegroup\n"},
		"not asked": {func(c *calling) {
			c.View.Nodegroups = nil
			c.demand(1)
		}, "EKSUnavailable: EKS was not asked about node group gpus of cluster one: see whether the controller has an AWS region and credentials by IRSA or Pod Identity\n"},
		"no cluster": {func(c *calling) {
			c.group().Object.Spec.Provider.EKS.Cluster = ""
			c.demand(1)
		}, "EKSUnavailable: pairing direct calls EKS, and spec.provider.eks.cluster is not set: set it, or choose pairing placeholder or observe\n"},
		"a group that goes": {func(c *calling) {
			c.eks(func(n *view.Nodegroup) { n.Status = "DELETING" })
			c.demand(1)
		}, "EKSUnavailable: node group gpus of cluster one is DELETING at EKS: see what is wrong with it there\n"},
	}.run(t)
}

// A size that EKS had already has no update. The one before it is still followed.
func TestUpdateOfIsTheLastOneOfOurs(t *testing.T) {
	group := &v1alpha1.GPUNodeGroup{}
	group.Status.InFlight = []v1alpha1.InFlight{{ID: "update-1", Nodes: 1, Target: 1}, {ID: wantedPrefix + "2-at-1", Nodes: 1, Target: 2}}
	if got := UpdateOf(group); got != "update-1" {
		t.Errorf("the update is %q, want update-1", got)
	}
}

func TestDirectFollowsWhatIsInFlight(t *testing.T) {
	protect := func(n *view.NodeState) {
		n.Object.Annotations = map[string]string{v1alpha1.AnnotationScaleDownDisabled: "true", v1alpha1.AnnotationProtected: forClaim}
		view.Hold(n.Object, epoch)
	}
	stories{
		"another node ends meanwhile": {func(c *calling) {
			c.asked("u1", 1, 3, time.Minute) // beside two, one of them is gone
			c.node(time.Hour, true)
			c.eks(func(n *view.Nodegroup) { n.Desired = 2 })
		}, "in flight: u1 1 to 3\n"},
		"another node is about to end": {func(c *calling) {
			c.asked("u1", 1, 2, time.Minute)
			leaving(c.node(time.Hour, true))
			c.eks(func(n *view.Nodegroup) { n.Desired = 1 })
		}, "in flight: u1 1 to 2\n"},
		"an intent is sent again": {func(c *calling) { c.asked(IntentID, 2, 2, time.Minute) },
			"set the size of gpus to 2\nin flight: intent 2 to 2\n"},
		"an intent waits for an update": {func(c *calling) {
			c.asked(IntentID, 2, 2, time.Minute)
			c.eks(func(n *view.Nodegroup) { n.Status = "UPDATING" })
		}, "in flight: intent 2 to 2\nEKSUpdating: EKS updates node group gpus of cluster one, which can take hours, and changes its size only after that: wait until the update is over\n"},
		"an intent that EKS has met": {func(c *calling) {
			c.asked(IntentID, 2, 2, time.Minute)
			c.eks(func(n *view.Nodegroup) { n.Desired = 2 })
		}, "in flight: size-2-at-1772366340 2 to 2\n"},
		"an intent that EKS refuses": {func(c *calling) {
			c.asked(IntentID, 2, 2, time.Minute)
			c.eks(func(n *view.Nodegroup) { n.Refused = "AWS denies eks:UpdateNodegroupConfig" })
		}, "leave gpus alone until 12:05:00: ScaleUpFailed\nbackoff 1: AWS denies eks:UpdateNodegroupConfig\n"},
		"an outdated intent": {func(c *calling) { c.asked(IntentID, 2, 2, time.Hour) }, ""},
		"an update in progress": {func(c *calling) {
			c.asked("u1", 1, 1, time.Minute)
			c.eks(func(n *view.Nodegroup) { n.Update, n.Status = "u1", "UPDATING" })
		}, "in flight: u1 1 to 1\n"},
		"an update that failed": {func(c *calling) {
			c.asked("u1", 1, 1, time.Minute)
			c.eks(func(n *view.Nodegroup) { n.Failed = "InsufficientFreeAddresses: none" })
		}, "leave gpus alone until 12:05:00: ScaleUpFailed\nbackoff 1: EKS was asked for a size of 1: InsufficientFreeAddresses: none; fix that at EKS; the size is as it was, and is asked for again after a while\n"},
		"EC2 has no machine": {func(c *calling) {
			c.asked("u1", 1, 1, time.Minute)
			c.eks(func(n *view.Nodegroup) { n.Failed, n.Desired = strings.Repeat("x", 600), 1 })
		}, "leave gpus alone until 12:05:00: ScaleUpFailed\nbackoff 1: EKS was asked for a size of 1: " + strings.Repeat("x", 253) +
			"…; fix that, or if AWS has no machines, wait or declare a group with another instance type, zone or capacityType; the desired size stays 1: lower it if the nodes are not wanted any more\n"},
		"the second update failed": {func(c *calling) {
			c.asked("u1", 1, 1, 2*time.Minute)
			c.asked("u2", 1, 2, time.Minute)
			c.eks(func(n *view.Nodegroup) { n.Failed, n.Desired = "none", 1 })
		}, "leave gpus alone until 12:05:00: ScaleUpFailed\nin flight: u1 1 to 1\nbackoff 1: EKS was asked for a size of 2: none; fix that at EKS; the size is as it was, and is asked for again after a while\n"},
		"fails once more": {func(c *calling) {
			c.status().Backoff = fail(nil, c.Now.Add(-10*time.Minute), v1alpha1.ReasonScaleUpFailed, "first")
			c.asked("u1", 1, 1, time.Minute)
			c.eks(func(n *view.Nodegroup) { n.Failed = "again" })
		}, "leave gpus alone until 12:10:00: ScaleUpFailed\nbackoff 2: EKS was asked for a size of 1: again; fix that at EKS; the size is as it was, and is asked for again after a while\n"},
		"no node in time": {func(c *calling) {
			c.asked("u1", 2, 2, 21*time.Minute)
			c.node(10*time.Minute, true)
			c.eks(func(n *view.Nodegroup) { n.Desired = 2 })
		}, "leave gpus alone until 12:05:00: ScaleUpFailed\nbackoff 1: 1 of 2 nodes that EKS was asked for have not come within 20m0s; its desired size is 2: see the Auto Scaling group's activity, and lower the size there if they are not wanted any more\n"},
		"no slices in time": {func(c *calling) {
			c.asked("u1", 1, 1, 21*time.Minute)
			c.node(15*time.Minute, false)
			c.eks(func(n *view.Nodegroup) { n.Desired = 1 })
		}, "leave gpus alone until 12:05:00: NodeIncomplete\nkeep node node-0 for claim\nbackoff 1: node node-0 is not complete after 20m0s: pool gpus has 0 of 8 devices\n"},
		"a device plugin has the GPUs": {func(c *calling) {
			c.asked("u1", 1, 1, 3*time.Minute)
			c.node(time.Minute, false).Withheld = "offers none of its GPUs: a device plugin has them"
			c.eks(func(n *view.Nodegroup) { n.Desired = 1 })
		}, "leave gpus alone until 12:05:00: NodeIncomplete\nkeep node node-0 for claim\nbackoff 1: node node-0, which EKS was asked for, offers none of its GPUs: a device plugin has them\n"},
		"another client lowers the size": {func(c *calling) { c.asked("u1", 2, 2, time.Minute) },
			"leave gpus alone until 12:05:00: ScaleUpFailed\nbackoff 1: the size was set to 2, and another client set it back to 0 before 2 nodes had come: let one client set the size, or choose pairing observe\n"},
		"the size was lowered just now, or another machine ends": {func(c *calling) {
			c.asked("u1", 1, 3, time.Minute)
			c.node(time.Hour, true)
			c.node(time.Hour, true) // its machine is gone
			c.eks(func(n *view.Nodegroup) { n.Desired, n.DesiredSince = 2, c.Now.Add(-time.Minute) })
		}, "in flight: u1 1 to 3\n"},
		"asked in the future": {func(c *calling) {
			c.asked("u1", 1, 1, -24*time.Hour)
			c.eks(func(n *view.Nodegroup) { n.Desired = 1 })
		}, "in flight: u1 1 to 1\n"},
		"the node comes": {func(c *calling) {
			c.asked("u1", 1, 1, 10*time.Minute)
			c.node(time.Minute, false)
			c.eks(func(n *view.Nodegroup) { n.Desired = 1 })
		}, "keep node node-0 for claim\nin flight: u1 1 to 1\n"},
		"complete, and not protected yet": {func(c *calling) {
			c.asked("u1", 1, 1, 10*time.Minute)
			c.node(time.Minute, true)
			c.eks(func(n *view.Nodegroup) { n.Desired = 1 })
		}, "keep node node-0 for claim\nin flight: u1 1 to 1\n"},
		"complete": {func(c *calling) {
			c.asked("u1", 1, 1, 10*time.Minute)
			protect(c.node(time.Minute, true))
			c.eks(func(n *view.Nodegroup) { n.Desired = 1 })
		}, ""},
		"complete and claimed": {func(c *calling) {
			c.asked("u1", 1, 1, 10*time.Minute)
			protect(c.node(time.Minute, true))
			c.View.Claims = []*resourceapi.ResourceClaim{{}, allocatedOn("node-0")}
			c.eks(func(n *view.Nodegroup) { n.Desired = 1 })
		}, "let node node-0 be removed again\n"},
		"an older node is none of it": {func(c *calling) {
			c.node(time.Hour, true)
			c.asked("u1", 1, 2, 10*time.Minute)
			c.eks(func(n *view.Nodegroup) { n.Desired = 2 })
		}, "in flight: u1 1 to 2\n"},
		"success ends the backoff": {func(c *calling) {
			c.status().Backoff = fail(nil, c.Now.Add(-10*time.Minute), v1alpha1.ReasonScaleUpFailed, "no capacity")
			protect(c.node(time.Minute, true))
			c.eks(func(n *view.Nodegroup) { n.Desired = 1 })
		}, ""},
		"placeholders of before": {func(c *calling) { c.asked("mica-gpus-k1-0", 1, 0, time.Minute) }, ""},
	}.run(t)
}
