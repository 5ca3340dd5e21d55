package scheduler

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/test/fixture"
)

// newRunning is a pod on a node.
func (w *world) newRunning(node string, i int) *corev1.Pod {
	p := w.bare(fmt.Sprintf("running-%s-%d", node, i))
	p.Spec.NodeName = node
	return p
}

// bare is a pod without claims.
func (w *world) bare(name string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fixture.Namespace, Name: name, UID: types.UID("uid-" + name),
			Labels: map[string]string{"app": pick(w, "a", "b", "c"), "name": name},
		},
		Spec: corev1.PodSpec{SchedulerName: "default-scheduler"},
	}
	for range 1 + w.random.IntN(2) {
		p.Spec.Containers = append(p.Spec.Containers, w.container(len(p.Spec.Containers)))
	}
	if w.in(20) {
		c := w.container(0)
		c.Name = "init"
		if w.in(50) {
			c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	if w.in(10) {
		p.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}
	}
	if w.in(10) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{w.term()}}}
	}
	return p
}

func (w *world) container(i int) corev1.Container {
	requests := corev1.ResourceList{}
	if w.in(80) {
		requests[corev1.ResourceCPU] = resource.MustParse(pick(w, "100m", "1", "3"))
	}
	if w.in(60) {
		requests[corev1.ResourceMemory] = resource.MustParse(pick(w, "1Gi", "6Gi", "20Gi"))
	}
	if w.in(10) {
		requests[corev1.ResourceEphemeralStorage] = resource.MustParse(pick(w, "10Gi", "80Gi"))
	}
	if w.in(5) {
		requests["example.com/fpga"] = resource.MustParse("1")
	}
	c := corev1.Container{Name: fmt.Sprintf("main-%d", i), Resources: corev1.ResourceRequirements{Requests: requests}}
	if w.in(10) {
		c.Ports = []corev1.ContainerPort{{HostPort: pick[int32](w, 80, 443), ContainerPort: 80, Protocol: corev1.ProtocolTCP, HostIP: pick(w, "", "10.0.0.1", "127.0.0.1")}}
	}
	return c
}

func (w *world) term() corev1.PodAffinityTerm {
	return corev1.PodAffinityTerm{
		TopologyKey:   corev1.LabelHostname,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick(w, "a", "b", "c")}},
	}
}

// newPod is a pod that waits, with claims.
func (w *world) newPod(name string) *pod {
	p := &pod{object: w.bare(name)}
	spec := &p.object.Spec
	if w.in(15) {
		spec.NodeSelector = map[string]string{pick(w, "zone", "pool"): pick(w, "a", "x")}
	}
	if w.in(15) {
		w.bindToNodes(spec)
	}
	if w.in(30) {
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Key: pick(w, "gpu", "spot", ""), Operator: corev1.TolerationOpExists})
	}
	if w.in(5) {
		if spec.Affinity == nil {
			spec.Affinity = &corev1.Affinity{}
		}
		spec.Affinity.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{w.term()}}
	}
	if w.in(20) {
		c := &spec.Containers[0]
		c.Resources.Requests[corev1.ResourceName(pick(w, "nvidia.com/gpu", "deviceclass.resource.kubernetes.io/mig.nvidia.com"))] = resource.MustParse(pick(w, "1", "2"))
		if w.in(30) && len(spec.InitContainers) > 0 {
			spec.InitContainers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse(pick(w, "1", "3"))
		}
	}
	for range w.random.IntN(3) {
		w.addClaim(p)
	}
	return p
}

func (w *world) bindToNodes(spec *corev1.PodSpec) {
	term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{pick(w,
		corev1.NodeSelectorRequirement{Key: "size", Operator: corev1.NodeSelectorOpGt, Values: []string{"5"}},
		corev1.NodeSelectorRequirement{Key: "pool", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"y"}},
		corev1.NodeSelectorRequirement{Key: "pool", Operator: corev1.NodeSelectorOpExists},
		corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"node-1", "node-3"}},
	)}}
	if w.in(30) {
		term = corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"node-2"}}}}
	}
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	spec.Affinity.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}}
}

func (w *world) addClaim(p *pod) {
	name := fmt.Sprintf("%s-%d", p.object.Name, len(p.claims))
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: fixture.Namespace, Name: name, UID: types.UID("uid-" + name)}}
	devices := &claim.Spec.Devices
	for range 1 + w.random.IntN(2) {
		devices.Requests = append(devices.Requests, w.request(fmt.Sprintf("r%d", len(devices.Requests))))
	}
	if w.in(25) {
		attribute := resourceapi.FullyQualifiedName(pick(w, "gpu.nvidia.com/parentUUID", "gpu.nvidia.com/uuid", "resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot", "gpu.nvidia.com/profile"))
		constraint := resourceapi.DeviceConstraint{MatchAttribute: &attribute}
		if w.in(40) {
			constraint = resourceapi.DeviceConstraint{DistinctAttribute: &attribute}
		}
		if w.in(30) {
			constraint.Requests = []string{"r0"}
		}
		devices.Constraints = append(devices.Constraints, constraint)
	}
	p.claims = append(p.claims, claim)
	p.object.Spec.ResourceClaims = append(p.object.Spec.ResourceClaims, corev1.PodResourceClaim{Name: fmt.Sprintf("c%d", len(p.claims)), ResourceClaimName: &name})
}

func (w *world) request(name string) resourceapi.DeviceRequest {
	if w.in(15) {
		request := resourceapi.DeviceRequest{Name: name}
		for i := range 2 {
			exact := w.exactly()
			request.FirstAvailable = append(request.FirstAvailable, resourceapi.DeviceSubRequest{
				Name: fmt.Sprintf("s%d", i), DeviceClassName: exact.DeviceClassName, Selectors: exact.Selectors,
				AllocationMode: exact.AllocationMode, Count: exact.Count, Tolerations: exact.Tolerations, Capacity: exact.Capacity,
			})
		}
		return request
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: w.exactly()}
}

func (w *world) exactly() *resourceapi.ExactDeviceRequest {
	r := &resourceapi.ExactDeviceRequest{
		DeviceClassName: pick(w, "gpu.nvidia.com", "gpu.nvidia.com", "mig.nvidia.com", "timeslice.nvidia.com", "mps.nvidia.com", "any", "nic"),
		AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
		Count:           pick[int64](w, 1, 1, 1, 2, 3),
	}
	if len(w.network) > 0 && w.in(25) {
		r.DeviceClassName = "nic"
	}
	if w.in(10) {
		r.AllocationMode, r.Count = resourceapi.DeviceAllocationModeAll, 0
	}
	if w.in(40) {
		expressions := []string{
			`device.attributes["gpu.nvidia.com"].?profile.orValue("none").startsWith("1g")`,
			`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("30Gi")) >= 0`,
			`device.attributes["gpu.nvidia.com"].productName.contains("A")`,
			`device.attributes["resource.kubernetes.io"].?numaNode.orValue(0) == 0`,
			`device.attributes["gpu.nvidia.com"].?index.orValue(0) < 1`,
			`device.attributes["nic.example.com"].?speed.orValue(100) == 100`,
		}
		if w.uuids {
			expressions = append(expressions, `device.attributes["gpu.nvidia.com"].?uuid.orValue("").startsWith("node-1")`)
		}
		r.Selectors = selectors(pick(w, expressions...))
	}
	if w.in(10) {
		r.AdminAccess = ptr.To(true)
	}
	if w.in(20) {
		r.Tolerations = []resourceapi.DeviceToleration{{Key: pick(w, "xid", ""), Operator: resourceapi.DeviceTolerationOpExists}}
	}
	if w.in(20) {
		r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(pick(w, "1Gi", "5Gi", "20Gi", "100Gi"))}}
	}
	return r
}
