package fit

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/test/fixture"
)

const oneG = `device.attributes["gpu.nvidia.com"].profile == "1g.10gb"`

// onHostname is a term for pods on the same node with app=a.
func onHostname() []corev1.PodAffinityTerm {
	return []corev1.PodAffinityTerm{{
		TopologyKey:   corev1.LabelHostname,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}},
	}}
}

func TestPlaceSaysWhatIsInTheWay(t *testing.T) {
	for name, tc := range map[string]struct {
		node    func(*Node)
		pod     func(*corev1.Pod)
		claims  []PodClaim
		reason  Reason
		mention string
	}{
		"nothing": {claims: []PodClaim{claiming(fixture.Driver, 8)}},
		// Devices that differ in one thing alone, which the first of them does not have.
		"one GPU of eight, by an attribute":      {claims: []PodClaim{claiming(fixture.Driver, 1, `device.attributes["gpu.nvidia.com"].index == 5`)}},
		"partitions but the smallest, by memory": {claims: []PodClaim{claiming("mig.nvidia.com", 1, `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("30Gi")) >= 0`)}},
		"a cordon": {
			node:   func(n *Node) { n.Object.Spec.Unschedulable = true },
			reason: ReasonUnschedulable, mention: "cordoned",
		},
		"a cordon that is tolerated": {
			node: func(n *Node) { n.Object.Spec.Unschedulable = true },
			pod: func(p *corev1.Pod) {
				p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists}}
			},
		},
		"another value of a label": {
			node:   func(n *Node) { n.Object.Labels["zone"] = "a" },
			pod:    func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "b"} },
			reason: ReasonNodeAffinity, mention: "asks for the label zone=b, and the node has zone=a",
		},
		"another value of a label, and a cordon": {
			node:   func(n *Node) { n.Object.Labels["zone"], n.Object.Spec.Unschedulable = "a", true },
			pod:    func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "b"} },
			reason: ReasonNodeAffinity, mention: "asks for the label zone=b, and the node has zone=a",
		},
		"node affinity": {
			pod: func(p *corev1.Pod) {
				p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpExists}}}},
				}}}
			},
			reason: ReasonNodeAffinity, mention: "zone Exists",
		},
		"a taint": {
			node: func(n *Node) {
				n.Object.Spec.Taints = []corev1.Taint{{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule}}
			},
			reason: ReasonTaint, mention: "gpu=yes:NoSchedule",
		},
		"a taint that only asks": {
			node: func(n *Node) {
				n.Object.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectPreferNoSchedule}}
			},
		},
		"a port": {
			node: func(n *Node) { n.Pods[0].Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}} },
			pod: func(p *corev1.Pod) {
				p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80, HostIP: "10.0.0.1"}}
			},
			reason: ReasonPods, mention: "80/TCP",
		},
		"a pod that it avoids": {
			node: func(n *Node) { n.Pods[0].Labels = map[string]string{"app": "a"} },
			pod: func(p *corev1.Pod) {
				p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: onHostname()}}
			},
			reason: ReasonPods, mention: "app=a",
		},
		"a pod that avoids it": {
			node: func(n *Node) {
				n.Pods[0].Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: onHostname()}}
			},
			pod:    func(p *corev1.Pod) { p.Labels = map[string]string{"app": "a"} },
			reason: ReasonPods, mention: "app=a",
		},
		"no pod that it wants": {
			pod: func(p *corev1.Pod) {
				p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: onHostname()}}
			},
			reason: ReasonPods, mention: "app=a",
		},
		"memory": {
			pod: func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("3000Gi")
			},
			reason: ReasonResources, mention: "3000Gi of memory (2000Gi free)",
		},
		"CPU that an init container needs": {
			pod: func(p *corev1.Pod) {
				p.Spec.InitContainers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("192")}}}}
			},
			reason: ReasonResources, mention: "192 of cpu (191 free)",
		},
		"too many pods": {
			node:   func(n *Node) { n.Object.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1") },
			reason: ReasonResources, mention: "as many pods",
		},
		"a pod that has ended": {
			node: func(n *Node) {
				n.Object.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1")
				n.Pods[0].Status.Phase = corev1.PodSucceeded
			},
		},
		"a claim that is allocated elsewhere": {
			claims: []PodClaim{{Name: "mine", Placed: true, Claim: &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
				NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
					Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"other"},
				}}}}},
			}}}}},
			reason: ReasonClaimNode, mention: `claim "mine" is allocated`,
		},
		"too few devices": {
			claims: []PodClaim{claiming(fixture.Driver, 9)},
			reason: ReasonDevices, mention: `claim "gpus" cannot be allocated`,
		},
		"too few devices for an extended resource": {
			pod: func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse("9")
			},
			reason: ReasonDevices, mention: "extended resource nvidia.com/gpu",
		},
		"an extended resource that the node has itself, too little": {
			node: func(n *Node) { n.Object.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("2") },
			pod: func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse("3")
			},
			reason: ReasonResources, mention: "3 of nvidia.com/gpu (2 free)",
		},
		"an extended resource without a provider": {
			pod: func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests["example.com/fpga"] = resource.MustParse("1")
			},
			reason: ReasonResources, mention: "example.com/fpga",
		},
		"an expression that fails": {
			claims: []PodClaim{claiming(fixture.Driver, 1, `device.attributes["gpu.nvidia.com"].nothing == "x"`)},
			reason: ReasonDevices, mention: "no such key: nothing",
		},
	} {
		t.Run(name, func(t *testing.T) {
			node := Node{Object: large("node"), Slices: published(t, "p5.48xlarge", "node"), Pods: []*corev1.Pod{requesting("running", map[string]string{"cpu": "1"})}}
			pod := requesting("pod", map[string]string{"cpu": "1"})
			if tc.node != nil {
				tc.node(&node)
			}
			if tc.pod != nil {
				tc.pod(pod)
			}
			c := New(Facts{Classes: deviceClasses(), Slices: node.Slices, Pods: append(node.Pods, pod)})
			p, err := c.Pod(pod, tc.claims)
			if err != nil {
				t.Fatal(err)
			}
			left, miss, err := c.Shared().Place(t.Context(), c.Machine(node), p)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case tc.reason == "" && (miss != nil || left == nil):
				t.Errorf("got %+v, want that it fits", miss)
			case tc.reason != "" && (miss == nil || miss.Reason != tc.reason || !strings.Contains(miss.Text, tc.mention)):
				t.Errorf("got %+v, want %s with %q", miss, tc.reason, tc.mention)
			}
		})
	}
}

func TestPodIsRefusedInASentence(t *testing.T) {
	for name, tc := range map[string]struct {
		pod     func(*corev1.Pod)
		claim   PodClaim
		mention string
	}{
		"an unknown class":                    {claim: claiming("gpu.example.com", 1), mention: `claim "gpus": request "gpu": device class "gpu.example.com" does not exist: there are gpu.nvidia.com, mig.nvidia.com`},
		"an expression that does not compile": {claim: claiming(fixture.Driver, 1, `device.memory > 1`), mention: `the expression "device.memory > 1" does not compile`},
		"an expression that costs too much": {
			claim:   claiming(fixture.Driver, 1, `device.attributes["a"].all(a, device.attributes["a"].all(b, device.attributes["a"].all(c, device.attributes["a"].all(d, a + b != c + d))))`),
			mention: "may cost",
		},
		"affinity to a zone": {
			pod: func(p *corev1.Pod) {
				terms := onHostname()
				terms[0].TopologyKey = corev1.LabelTopologyZone
				p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
			},
			mention: "not planned",
		},
		"spreading": {
			pod: func(p *corev1.Pod) {
				p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule}}
			},
			mention: "ScheduleAnyway",
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := requesting("pod", nil)
			if tc.pod != nil {
				tc.pod(pod)
			}
			var claims []PodClaim
			if tc.claim.Claim != nil {
				claims = append(claims, tc.claim)
			}
			_, err := New(Facts{Classes: deviceClasses()}).Pod(pod, claims)
			if err == nil || !strings.Contains(err.Error(), tc.mention) {
				t.Errorf("got %v, want %q", err, tc.mention)
			}
		})
	}
}

func TestMachinesOfAlikeNodesAreOne(t *testing.T) {
	constraint := func(claim PodClaim, attribute resourceapi.FullyQualifiedName) PodClaim {
		claim.Claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &attribute}}
		return claim
	}
	for name, tc := range map[string]struct {
		claim  PodClaim
		change func(*Node)
		want   bool
	}{
		"but for names and UUIDs":            {claim: claiming(migClass, 1, oneG), want: true},
		"UUIDs that are compared":            {claim: constraint(claiming(migClass, 7, oneG), "gpu.nvidia.com/parentUUID"), want: true},
		"UUIDs that are selected":            {claim: claiming(fixture.Driver, 1, `device.attributes["gpu.nvidia.com"].uuid == "x"`)},
		"UUIDs that a computed name selects": {claim: claiming(fixture.Driver, 1, `device.attributes["gpu.nvidia.com"]["uu" + "id"] == "x"`)},
		"UUIDs that are walked over":         {claim: claiming(fixture.Driver, 1, `device.attributes["gpu.nvidia.com"].exists(k, k == "x")`)},
		"a bound name":                       {claim: claiming(fixture.Driver, 1, `cel.bind(a, device.attributes["gpu.nvidia.com"], a.type == "gpu")`), want: true},
		"another parent": {claim: constraint(claiming(migClass, 7, oneG), "gpu.nvidia.com/parentUUID"), change: func(n *Node) {
			n.Slices[1].Spec.Devices[0].Attributes["parentUUID"] = n.Slices[2].Spec.Devices[0].Attributes["parentUUID"]
		}},
		"a label that no selector has": {claim: claiming(migClass, 1), change: func(n *Node) { n.Object.Labels["a"] = "b" }, want: true},
		"a node taint":                 {claim: claiming(migClass, 1), change: func(n *Node) { n.Object.Spec.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}} }},
		"a device's taint": {claim: claiming(migClass, 1), change: func(n *Node) {
			n.Slices[0].Spec.Devices[3].Taints = []resourceapi.DeviceTaint{{Key: "a", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		}},
		"a capacity": {claim: claiming(migClass, 1), change: func(n *Node) {
			n.Slices[0].Spec.Devices[3].Capacity["memory"] = resourceapi.DeviceCapacity{Value: resource.MustParse("1Gi")}
		}},
		"a counter": {claim: claiming(migClass, 1), change: func(n *Node) {
			last := n.Slices[len(n.Slices)-1]
			last.Spec.SharedCounters[0].Counters["memory-slice-0"] = resourceapi.Counter{Value: resource.MustParse("7")}
		}},
		"a slice that is missing": {claim: claiming(migClass, 1), change: func(n *Node) { n.Slices = n.Slices[1:] }},
		"requests":                {claim: claiming(migClass, 1), change: func(n *Node) { n.Pods = []*corev1.Pod{requesting("a", map[string]string{"cpu": "1"})} }},
	} {
		t.Run(name, func(t *testing.T) {
			a := Node{Object: large("node-a"), Slices: published(t, "p5.48xlarge", "node-a")}
			b := Node{Object: large("node-b"), Slices: published(t, "p5.48xlarge", "node-b")}
			if tc.change != nil {
				tc.change(&b)
			}
			c := New(Facts{Classes: deviceClasses(), Slices: append(a.Slices, b.Slices...)})
			if _, err := c.Pod(requesting("pod", map[string]string{"cpu": "1"}), []PodClaim{tc.claim}); err != nil {
				t.Fatal(err)
			}
			if got := c.Machine(a) == c.Machine(b); got != tc.want {
				t.Errorf("one machine: %v, want %v", got, tc.want)
			}
		})
	}
}

func TestKindIsOfWhatCounts(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Pod, *PodClaim)
		alike  bool
	}{
		"names":  {func(p *corev1.Pod, c *PodClaim) { p.Name, c.Claim.Name = "other", "other" }, true},
		"labels": {func(p *corev1.Pod, _ *PodClaim) { p.Labels = map[string]string{"a": "b"} }, true},
		"configuration": {func(_ *corev1.Pod, c *PodClaim) {
			c.Claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{}}
		}, true},
		"defaults": {func(_ *corev1.Pod, c *PodClaim) {
			c.Claim.Spec.Devices.Requests[0].Exactly.AllocationMode = resourceapi.DeviceAllocationModeExactCount
		}, true},
		"count": {func(_ *corev1.Pod, c *PodClaim) { c.Claim.Spec.Devices.Requests[0].Exactly.Count = 2 }, false},
		"CPU": {func(p *corev1.Pod, _ *PodClaim) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("2")
		}, false},
		"a toleration": {func(p *corev1.Pod, _ *PodClaim) { p.Spec.Tolerations = []corev1.Toleration{{Key: "a"}} }, false},
		"shared":       {func(_ *corev1.Pod, c *PodClaim) { c.Shared = true }, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := New(Facts{Classes: deviceClasses()})
			kind := func(change func(*corev1.Pod, *PodClaim)) string {
				pod, claim := requesting("pod", map[string]string{"cpu": "1"}), claiming(fixture.Driver, 1)
				change(pod, &claim)
				p, err := c.Pod(pod, []PodClaim{claim})
				if err != nil {
					t.Fatal(err)
				}
				return p.Kind()
			}
			if got := kind(func(*corev1.Pod, *PodClaim) {}) == kind(tc.change); got != tc.alike {
				t.Errorf("alike: %v, want %v", got, tc.alike)
			}
		})
	}
}

func TestPlaceTakesRoom(t *testing.T) {
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want int
	}{
		"CPU":    {requesting("pod", map[string]string{"cpu": "40"}), 4},
		"memory": {requesting("pod", map[string]string{"memory": "900Gi"}), 2},
		"pods":   {requesting("pod", nil), 250},
	} {
		t.Run(name, func(t *testing.T) {
			c := New(Facts{})
			p, err := c.Pod(tc.pod, nil)
			if err != nil {
				t.Fatal(err)
			}
			placed := 0
			for m := c.Machine(Node{Object: large("node")}); ; placed++ {
				left, miss, err := c.Shared().Place(t.Context(), m, p)
				if err != nil {
					t.Fatal(err)
				}
				if miss != nil {
					break
				}
				m = left
			}
			if placed != tc.want {
				t.Errorf("%d pods fit, want %d", placed, tc.want)
			}
		})
	}
}

func TestOnlyLabelsThatAreAskedForTellApart(t *testing.T) {
	c := New(Facts{})
	for _, zone := range []string{"a", "b"} {
		pod := requesting("pod", nil)
		pod.Spec.NodeSelector = map[string]string{"zone": zone}
		if _, err := c.Pod(pod, nil); err != nil {
			t.Fatal(err)
		}
	}
	in := func(zone string) *Machine {
		node := large("node-in-" + zone)
		node.Labels["zone"] = zone
		return c.Machine(Node{Object: node})
	}
	if in("a") == in("b") {
		t.Error("zones that pods ask for are one machine")
	}
	if in("c") != in("d") {
		t.Error("zones that no pod asks for are two machines")
	}
	if in("c") == c.Machine(Node{Object: large("nowhere")}) {
		t.Error("a node without the label is like one with another value")
	}
}

func TestPodThatIsReadTooLateIsRefused(t *testing.T) {
	c := New(Facts{})
	if _, err := c.Pod(requesting("pod", map[string]string{"cpu": "1"}), nil); err != nil {
		t.Fatal(err)
	}
	c.Machine(Node{Object: large("node")})
	if _, err := c.Pod(requesting("pod", map[string]string{"cpu": "2"}), nil); err != nil {
		t.Errorf("a pod that asks for nothing new: %v", err)
	}
	if _, err := c.Pod(requesting("pod", map[string]string{"memory": "1Gi"}), nil); err == nil {
		t.Error("a pod that asks for what machines do not tell is read")
	}
}

// Which devices of the network have the same value as the node's own depends on the value.
func TestValuesComparedWithTheNetworkTellMachinesApart(t *testing.T) {
	device := func(name, clique string) resourceapi.Device {
		return resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"fabric.example.com/clique": {StringValue: ptr.To(clique)},
		}}
	}
	channel := ofNetwork("channel.example.com", device("channel-0", "a"))
	local := func(node, clique string) Node {
		return Node{Object: large(node), Slices: []*resourceapi.ResourceSlice{{
			ObjectMeta: metav1.ObjectMeta{Name: "slice-of-" + node},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: "gpu.example.com", NodeName: &node,
				Pool:    resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
				Devices: []resourceapi.Device{device("gpu-0", clique)},
			},
		}}}
	}
	class := func(name string) *resourceapi.DeviceClass {
		return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourceapi.DeviceClassSpec{Selectors: selectors(`device.driver == "` + name + `.example.com"`)}}
	}
	c := New(Facts{Classes: []*resourceapi.DeviceClass{class("gpu"), class("channel")}, Slices: []*resourceapi.ResourceSlice{channel}})
	both := claimOf(
		resourceapi.DeviceRequest{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu"}},
		resourceapi.DeviceRequest{Name: "channel", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "channel"}},
	)
	both.Claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName("fabric.example.com/clique"))}}
	p, err := c.Pod(requesting("pod", nil), []PodClaim{both})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		node, clique string
		fits         bool
	}{{"node-b", "b", false}, {"node-a", "a", true}} {
		_, miss, err := c.Shared().Place(t.Context(), c.Machine(local(tc.node, tc.clique)), p)
		if err != nil {
			t.Fatal(err)
		}
		if fits := miss == nil; fits != tc.fits {
			t.Errorf("on %s, of clique %s: fits %v (%v), want %v", tc.node, tc.clique, fits, miss, tc.fits)
		}
	}
}
