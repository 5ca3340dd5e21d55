package migrate

import (
	"fmt"
	"slices"
	"strings"

	yamlnode "go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
)

// workload is a kind that has pods.
type workload struct {
	// group is what its apiVersion begins with.
	group string
	// path leads to the pod's spec.
	path []string
	// decode is the pod's spec, strictly decoded.
	decode func(document) (corev1.PodSpec, error)
	// fixed tells that the pods of one that exists cannot change.
	fixed bool
}

var inTemplate = []string{"spec", "template", "spec"}

// workloads are the kinds that are migrated.
var workloads = map[string]workload{
	"Deployment": {group: "apps/v1", path: inTemplate, decode: func(d document) (corev1.PodSpec, error) {
		var o appsv1.Deployment
		err := d.decode(&o)
		return o.Spec.Template.Spec, err
	}},
	"StatefulSet": {group: "apps/v1", path: inTemplate, decode: func(d document) (corev1.PodSpec, error) {
		var o appsv1.StatefulSet
		err := d.decode(&o)
		return o.Spec.Template.Spec, err
	}},
	"DaemonSet": {group: "apps/v1", path: inTemplate, decode: func(d document) (corev1.PodSpec, error) {
		var o appsv1.DaemonSet
		err := d.decode(&o)
		return o.Spec.Template.Spec, err
	}},
	"ReplicaSet": {group: "apps/v1", path: inTemplate, decode: func(d document) (corev1.PodSpec, error) {
		var o appsv1.ReplicaSet
		err := d.decode(&o)
		return o.Spec.Template.Spec, err
	}},
	"Job": {group: "batch/v1", path: inTemplate, fixed: true, decode: func(d document) (corev1.PodSpec, error) {
		var o batchv1.Job
		err := d.decode(&o)
		return o.Spec.Template.Spec, err
	}},
	"CronJob": {group: "batch/v1", path: []string{"spec", "jobTemplate", "spec", "template", "spec"}, decode: func(d document) (corev1.PodSpec, error) {
		var o batchv1.CronJob
		err := d.decode(&o)
		return o.Spec.JobTemplate.Spec.Template.Spec, err
	}},
	"Pod": {group: "v1", path: []string{"spec"}, fixed: true, decode: func(d document) (corev1.PodSpec, error) {
		var o corev1.Pod
		err := d.decode(&o)
		return o.Spec, err
	}},
}

// workload migrates the pods of a workload.
func (m *migration) workload(d document, w workload) (made []any, changed bool, err error) {
	pod, err := w.decode(d)
	if err != nil {
		return nil, false, err
	}
	p, wrong := m.read(pod)
	switch {
	case wrong != nil:
		m.find(d, Blocked, wrong.field, wrong.what, "")
		return nil, false, nil
	case len(p.containers) == 0:
		m.tellClaims(d, pod)
		m.tellUncounted(d, pod)
		return nil, false, nil
	}
	switch with := m.halfMigrated(d, pod); {
	case with != "":
		m.find(d, Blocked, "", "it has both limits of the device plugin and a claim of GPUs ("+with+"), and would get two GPUs",
			"remove the limits if the claim is what the containers use, else the claim, and migrate again")
		return nil, false, nil
	case w.fixed && m.Live:
		m.find(d, Blocked, "", "the pods of a "+d.kind+" that exists cannot change, and they have "+p.containers[0].was(), "migrate the manifest that it was made from, with -f")
		return nil, false, nil
	}
	template := p.claim(m.free("ResourceClaimTemplate", d.namespace, label(d.object, 240)+"-gpu"), d.namespace)
	expand(d.node)
	node := get(d.node, w.path...)
	claim := freeClaim(pod)
	for _, c := range p.containers {
		c.rewrite(node, claim, len(template.Spec.Spec.Devices.Requests) > 1)
		m.find(d, Moved, c.field(), c.was()+" becomes a claim for "+c.is(), "")
	}
	add(node, "resourceClaims", corev1.PodResourceClaim{Name: claim, ResourceClaimTemplateName: &template.Name})
	m.tolerate(d, pod, node)
	m.tellPod(d, pod)
	if by := get(d.node, "metadata", "labels", "app.kubernetes.io/managed-by"); m.Live && by != nil {
		m.find(d, Look, "", by.Value+" manages it, and would undo what is applied here", "change what "+by.Value+" makes it from: give that with -f")
	}
	if w.fixed {
		m.find(d, Look, "", "the pods of a "+d.kind+" that exists cannot change", "delete the "+d.kind+" before you apply it")
	}
	return []any{template}, true, nil
}

// problem is why a pod cannot move, and the field.
type problem struct{ field, what string }

// gpuPod is what a pod asks for.
type gpuPod struct {
	// containers have limits of GPUs.
	containers []gpuContainer
	// requests are those of the claim.
	requests []request
}

type gpuContainer struct {
	name   string
	list   string // containers or initContainers
	limits map[string]int64
	asks   []ask
	// from are the names of the requests that the container uses.
	from []string
}

type request struct {
	name string
	ask  ask
}

// read says what a pod asks for: a request for each container that lasts as long as the pod, and
// for init containers what those leave out, as the scheduler has it for extended resources.
func (m *migration) read(pod corev1.PodSpec) (gpuPod, *problem) {
	var p gpuPod
	meaning := m.meaning(pod.NodeSelector)
	var initial []gpuContainer
	for _, of := range []struct {
		list       string
		containers []corev1.Container
	}{{"initContainers", pod.InitContainers}, {"containers", pod.Containers}} {
		for _, c := range of.containers {
			g, err := meaning.read(of.list, c)
			switch {
			case err != nil:
				return gpuPod{}, err
			case len(g.asks) == 0:
			case of.list == "initContainers" && (c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways):
				initial = append(initial, g)
			default:
				p.containers = append(p.containers, p.lasting(g))
			}
		}
	}
	for _, g := range initial {
		p.containers = append(p.containers, p.passing(g))
	}
	p.nameRequests()
	return p, nil
}

func (of meaning) read(list string, c corev1.Container) (gpuContainer, *problem) {
	g := gpuContainer{name: c.Name, list: list}
	var err error
	if g.limits, err = limitsOf(c); err == nil {
		g.asks, err = of.asksOf(g.limits)
	}
	if err != nil {
		return g, &problem{g.field(), err.Error()}
	}
	return g, nil
}

// lasting gives a container requests of its own.
func (p *gpuPod) lasting(g gpuContainer) gpuContainer {
	for i, a := range g.asks {
		name := g.name
		if i > 0 {
			name = fmt.Sprintf("%s-%d", label(g.name, 60), i+1)
		}
		p.requests = append(p.requests, request{name, a})
		g.from = append(g.from, name)
	}
	return g
}

// passing lets an init container use what the pod has anyway, and asks for what is missing.
func (p *gpuPod) passing(g gpuContainer) gpuContainer {
	for i, a := range g.asks {
		missing := max(a.devices, a.shares)
		for _, r := range p.requests {
			if missing > 0 && r.ask.alike(a) {
				missing -= max(r.ask.devices, r.ask.shares)
				g.from = append(g.from, r.name)
			}
		}
		if missing <= 0 {
			continue
		}
		if a.shares > 0 {
			a.shares = missing
		} else {
			a.devices = missing
		}
		name := fmt.Sprintf("%s-init-%d", label(g.name, 50), i+1)
		p.requests = append(p.requests, request{name, a})
		g.from = append(g.from, name)
	}
	return g
}

// nameRequests calls the only request of a pod gpu.
func (p *gpuPod) nameRequests() {
	if len(p.requests) != 1 {
		return
	}
	p.requests[0].name = claimName
	for i := range p.containers {
		p.containers[i].from = []string{claimName}
	}
}

// halfMigrated names a claim that is of GPUs, or may be.
func (m *migration) halfMigrated(d document, pod corev1.PodSpec) string {
	for _, claim := range pod.ResourceClaims {
		kind, name := "ResourceClaimTemplate", ptr.Deref(claim.ResourceClaimTemplateName, "")
		if claim.ResourceClaimName != nil {
			kind, name = "ResourceClaim", *claim.ResourceClaimName
		}
		gpus, known := m.ofGPUs(kind, d.namespace, name)
		if gpus {
			return kind + "/" + name
		}
		if !known && usedBesideLimits(pod, claim.Name) {
			return kind + "/" + name
		}
	}
	return ""
}

// usedBesideLimits tells whether a container has a claim and a limit.
func usedBesideLimits(pod corev1.PodSpec, claim string) bool {
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		uses := slices.ContainsFunc(c.Resources.Claims, func(of corev1.ResourceClaim) bool { return of.Name == claim })
		for name := range c.Resources.Limits {
			if uses && isGPU(string(name)) {
				return true
			}
		}
	}
	return false
}

// ofGPUs tells whether a claim or template of the sources asks for devices of the classes here.
func (m *migration) ofGPUs(kind, namespace, name string) (gpus, known bool) {
	for _, d := range m.all {
		if d.kind != kind || d.namespace != namespace || d.object != name {
			continue
		}
		requests := get(d.node, "spec", "devices", "requests")
		if kind == "ResourceClaimTemplate" {
			requests = get(d.node, "spec", "spec", "devices", "requests")
		}
		return slices.ContainsFunc(classesIn(requests), func(class string) bool { return strings.HasSuffix(class, ".nvidia.com") }), true
	}
	return false, false
}

// classesIn are the values of deviceClassName anywhere below a node.
func classesIn(node *yamlnode.Node) []string {
	if node == nil {
		return nil
	}
	var classes []string
	for i, child := range node.Content {
		if node.Kind == yamlnode.MappingNode && i%2 == 1 && node.Content[i-1].Value == "deviceClassName" {
			classes = append(classes, child.Value)
		}
		classes = append(classes, classesIn(child)...)
	}
	return classes
}

// tolerate adds what admission adds to pods with extended resources, and never to pods with claims
// (ExtendedResourceToleration).
func (m *migration) tolerate(d document, pod corev1.PodSpec, node *yamlnode.Node) {
	for _, t := range pod.Tolerations {
		if (t.Key == "" || t.Key == resourceGPU) && t.Operator == corev1.TolerationOpExists && (t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule) {
			return
		}
	}
	add(node, "tolerations", corev1.Toleration{Key: resourceGPU, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	m.find(d, Moved, "tolerations", "the toleration of the taint nvidia.com/gpu, which admission gives to pods with limits, and not to pods with claims, is written out", "")
}

// tellClaims says of a pod with claims that it works.
func (m *migration) tellClaims(d document, pod corev1.PodSpec) {
	for _, claim := range pod.ResourceClaims {
		name := ptr.Deref(claim.ResourceClaimTemplateName, ptr.Deref(claim.ResourceClaimName, ""))
		kind := "ResourceClaimTemplate"
		if claim.ResourceClaimName != nil {
			kind = "ResourceClaim"
		}
		if gpus, _ := m.ofGPUs(kind, d.namespace, name); gpus {
			m.find(d, Unchanged, "", "it has its GPUs by a claim, and works with Mica", "")
			return
		}
	}
}

// claim makes the template of the pod's claim.
func (p gpuPod) claim(name, namespace string) *resourceapi.ResourceClaimTemplate {
	template := &resourceapi.ResourceClaimTemplate{}
	template.APIVersion, template.Kind = resourceapi.SchemeGroupVersion.String(), "ResourceClaimTemplate"
	template.Name, template.Namespace = name, namespace
	for _, r := range p.requests {
		template.Spec.Spec.Devices.Requests = append(template.Spec.Spec.Devices.Requests, r.device())
	}
	return template
}
