package scaleout

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

// world is a cluster in the making, for tests: a snapshot that is written down line by line.
type world struct {
	t testing.TB
	Snapshot
	// spec is that of the claim which requests are added to, alternatives where those are.
	spec         *resourceapi.ResourceClaimSpec
	alternatives *resourceapi.DeviceRequest
	age          int
}

// epoch is when the first pod was made.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// typesOfDevices are those for which the chart has classes.
var typesOfDevices = []string{"gpu", "mig", "timeslice", "mps"}

// compiled are the expressions of all worlds, which are few.
var compiled = devices.NewSelectors()

func newWorld(t testing.TB) *world {
	w := &world{t: t}
	w.Selectors = compiled
	for _, kind := range typesOfDevices {
		w.Classes = append(w.Classes, &resourceapi.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: kind + ".nvidia.com", UID: types.UID("class-" + kind)},
			Spec: resourceapi.DeviceClassSpec{Selectors: selectors(
				fmt.Sprintf("device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == '%s'", kind))},
		})
	}
	return w
}

// options are what a line says besides its first words.
type options map[string]string

func (w *world) line(text string) {
	w.t.Helper()
	w.do(fixture.ParseLine(text))
}

func (w *world) do(line fixture.Line) {
	w.t.Helper()
	names, opts := line.Words, options(line.Options)
	command, known := commands[names[0]]
	if !known {
		w.t.Fatalf("line %q begins with no known word", line.Text)
	}
	if len(names)-1 < command.names {
		w.t.Fatalf("line %q lacks a name", line.Text)
	}
	for _, flag := range names[command.names+1:] {
		opts[flag] = "true"
	}
	command.run(w, append(names[1:], make([]string, 3)...), opts)
}

var commands = map[string]struct {
	// names is how many words follow that are no options.
	names int
	run   func(*world, []string, options)
}{
	"group":    {2, (*world).group},
	"node":     {2, (*world).node},
	"class":    {1, (*world).class},
	"template": {1, (*world).template},
	"claim":    {1, (*world).claim},
	"request":  {2, (*world).request},
	"first":    {1, (*world).first},
	"or":       {2, (*world).or},
	"match":    {1, (*world).match},
	"distinct": {1, (*world).distinct},
	"pods":     {2, (*world).pods},
	"budget":   {1, (*world).budget},
	"headroom": {3, (*world).headroom},
	"replica":  {1, (*world).replica},
	"gang":     {1, (*world).gang},
	"devices":  {2, (*world).devices},
}

// group NAME MACHINE: a node group of simulated machines.
func (w *world) group(names []string, o options) {
	g := Group{Name: names[0], Size: w.number(o, "size"), Upcoming: w.number(o, "upcoming"), Foreign: w.number(o, "foreign"), Closed: o["closed"], Unknown: o["unknown"], Advised: o["advised"] != ""}
	if o["max"] != "" {
		g.Max = ptr.To(w.number(o, "max"))
	}
	if o["price"] != "" {
		g.PricePerHour = ptr.To(resource.MustParse(o["price"]))
	}
	if g.Unknown == "" {
		node := w.nodeObject("template-of-"+g.Name, o)
		node.Labels["group"] = g.Name
		g.Template = &template.Template{Node: node, Slices: w.machine(names[1], o, node.Name)}
		g.GPUs = template.GPUs(fixture.Driver, g.Template.Slices)
	}
	if o["daemon"] != "" {
		g.Pods = []*corev1.Pod{daemonPod("daemon-"+g.Name, o["daemon"])}
	}
	w.Groups = append(w.Groups, g)
}

func daemonPod(name, cpu string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, UID: types.UID(name)}}
	pod.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "daemon", UID: "daemon", Controller: ptr.To(true)}}
	pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}
	return pod
}

// node NAME MACHINE: a live node.
func (w *world) node(names []string, o options) {
	object := w.nodeObject(names[0], o)
	object.Spec.Unschedulable = o["cordoned"] != ""
	if o["group"] != "" {
		object.Labels["group"] = o["group"]
	}
	object.CreationTimestamp.Time = epoch.Add(-time.Duration(w.number(o, "age")) * time.Minute)
	gpus := template.GPUs(fixture.Driver, w.machine(names[1], o, object.Name))
	w.Nodes = append(w.Nodes, Node{Object: object, Group: o["group"], GPUs: gpus, Starting: o["starting"] != ""})
	if o["silent"] == "" {
		w.Slices = append(w.Slices, w.machine(names[1], o, object.Name)...)
	}
	if o["used"] != "" {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "used-of-" + object.Name, UID: types.UID("used-" + object.Name)}}
		claim.Status.Allocation = allocation(object.Name, strings.Split(o["used"], ","))
		w.Claims = append(w.Claims, claim)
	}
}

func (w *world) nodeObject(name string, o options) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{corev1.LabelHostname: name}}}
	node.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse(cmp.Or(o["cpu"], "96")),
		corev1.ResourceMemory: resource.MustParse(cmp.Or(o["memory"], "1000Gi")),
		corev1.ResourcePods:   resource.MustParse(cmp.Or(o["pods"], "110")),
	}
	for _, pair := range list(o["labels"]) {
		key, value, _ := strings.Cut(pair, ":")
		node.Labels[key] = value
	}
	for _, key := range list(o["taint"]) {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Value: "true", Effect: corev1.TaintEffectNoSchedule})
	}
	return node
}

// published are pools of simulated machines, which take a while to make.
var published = map[string][]resourceapi.ResourceSliceSpec{}

// machine are the slices that a machine publishes, under the shapes that it offers.
func (w *world) machine(name string, o options, node string) []*resourceapi.ResourceSlice {
	shapes := cmp.Or(o["shapes"], "whole")
	key := name + " " + shapes
	if published[key] == nil {
		policy := gpu.Policy{Whole: strings.Contains(shapes, "whole"), MIG: strings.Contains(shapes, "mig")}
		if strings.Contains(shapes, "timeslice") {
			policy.TimeSlicing = &gpu.TimeSlicing{Replicas: 4, Interval: gpu.DefaultInterval}
		}
		if _, by, several := strings.Cut(shapes, "whole-by-"); several {
			policy.Consumable = &gpu.ConsumableShares{By: by}
			if by == gpu.ByCount {
				policy.Consumable.Count = 4
			}
		}
		facts := fixture.Node(w.t, name)
		pool := slice.Pool(facts, gpu.Shapes(facts.GPUs, func(gpu.GPU) gpu.Policy { return policy }), nil)
		for _, s := range pool.Slices {
			published[key] = append(published[key], resourceapi.ResourceSliceSpec{Devices: s.Devices, SharedCounters: s.SharedCounters})
		}
	}
	return named(published[key], node, list(o["tainted"]))
}

// named are the slices of a node, some of whose devices are tainted.
func named(specs []resourceapi.ResourceSliceSpec, node string, tainted []string) []*resourceapi.ResourceSlice {
	var made []*resourceapi.ResourceSlice
	for i, spec := range specs {
		spec.Driver = fixture.Driver
		spec.NodeName = &node
		spec.Pool = resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: int64(len(specs))}
		if len(tainted) > 0 {
			spec.Devices = slices.Clone(spec.Devices)
		}
		for d := range spec.Devices {
			if slices.Contains(tainted, spec.Devices[d].Name) {
				spec.Devices[d].Taints = []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/xid", Value: "79", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			}
		}
		name := fmt.Sprintf("%s-%d", node, i)
		made = append(made, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: spec})
	}
	return made
}

// class NAME: another class.
func (w *world) class(names []string, o options) {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: names[0], UID: types.UID("class-" + names[0])}}
	class.Spec.Selectors = selectors(o["cel"])
	if o["extended"] != "" {
		class.Spec.ExtendedResourceName = ptr.To(o["extended"])
	}
	w.Classes = append(w.Classes, class)
}

// template NAME: a claim template; the lines that follow say what it asks for.
func (w *world) template(names []string, o options) {
	object := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: cmp.Or(o["namespace"], "default"), Name: names[0], UID: types.UID("template-" + names[0])}}
	w.ClaimTemplates = append(w.ClaimTemplates, object)
	w.spec = &object.Spec.Spec
}

// claim NAME: a claim that pods name themselves.
func (w *world) claim(names []string, o options) {
	object := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: names[0], UID: types.UID("claim-" + names[0])}}
	if o["on"] != "" {
		object.Status.Allocation = allocation(o["on"], list(o["devices"]))
	}
	for i := range w.number(o, "users") {
		object.Status.ReservedFor = append(object.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{
			Resource: "pods", Name: fmt.Sprintf("user-%d", i), UID: types.UID(fmt.Sprintf("user-%d", i))})
	}
	w.Claims = append(w.Claims, object)
	w.spec = &object.Spec
}

func allocation(node string, devices []string) *resourceapi.AllocationResult {
	result := &resourceapi.AllocationResult{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
	}}}}
	for _, device := range devices {
		result.Devices.Results = append(result.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "gpus", Driver: fixture.Driver, Pool: node, Device: device})
	}
	return result
}

// request NAME CLASS: devices that a claim asks for.
func (w *world) request(names []string, o options) {
	exact := &resourceapi.ExactDeviceRequest{DeviceClassName: names[1], Selectors: selectors(o["cel"]), Count: 1,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount, Capacity: w.capacity(o)}
	if o["count"] != "" {
		exact.Count = int64(w.number(o, "count"))
	}
	if o["all"] != "" {
		exact.AllocationMode, exact.Count = resourceapi.DeviceAllocationModeAll, 0
	}
	if o["admin"] != "" {
		exact.AdminAccess = ptr.To(true)
	}
	if o["tolerate"] != "" {
		exact.Tolerations = []resourceapi.DeviceToleration{{Key: o["tolerate"], Operator: resourceapi.DeviceTolerationOpExists}}
	}
	w.spec.Devices.Requests = append(w.spec.Devices.Requests, resourceapi.DeviceRequest{Name: names[0], Exactly: exact})
}

func (w *world) capacity(o options) *resourceapi.CapacityRequirements {
	name, amount, found := strings.Cut(o["capacity"], ":")
	if !found {
		return nil
	}
	return &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
		resourceapi.QualifiedName(name): resource.MustParse(amount)}}
}

// first NAME: devices for which there are alternatives.
func (w *world) first(names []string, _ options) {
	requests := &w.spec.Devices.Requests
	*requests = append(*requests, resourceapi.DeviceRequest{Name: names[0]})
	w.alternatives = &(*requests)[len(*requests)-1]
}

// or NAME CLASS: an alternative.
func (w *world) or(names []string, o options) {
	sub := resourceapi.DeviceSubRequest{Name: names[0], DeviceClassName: names[1], Selectors: selectors(o["cel"]), Count: 1,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount, Capacity: w.capacity(o)}
	if o["count"] != "" {
		sub.Count = int64(w.number(o, "count"))
	}
	w.alternatives.FirstAvailable = append(w.alternatives.FirstAvailable, sub)
}

// match ATTRIBUTE: all devices of the claim have the same.
func (w *world) match(names []string, _ options) {
	w.spec.Devices.Constraints = append(w.spec.Devices.Constraints, resourceapi.DeviceConstraint{
		MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(names[0]))})
}

// distinct ATTRIBUTE: all devices of the claim have another.
func (w *world) distinct(names []string, _ options) {
	w.spec.Devices.Constraints = append(w.spec.Devices.Constraints, resourceapi.DeviceConstraint{
		DistinctAttribute: ptr.To(resourceapi.FullyQualifiedName(names[0]))})
}

// pods NAME COUNT: pods that wait, NAME-1 to NAME-COUNT.
func (w *world) pods(names []string, o options) {
	count, err := strconv.Atoi(names[1])
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range count {
		pod := w.pod(fmt.Sprintf("%s-%d", names[0], i+1), o)
		w.Pending = append(w.Pending, pod)
		if o["nominated"] != "" {
			w.nominate(pod, o["nominated"])
		}
	}
}

// nominate has the scheduler mean a pod for a node.
func (w *world) nominate(pod *corev1.Pod, node string) {
	if w.Nominated == nil {
		w.Nominated = map[types.UID]string{}
	}
	w.Nominated[pod.UID] = node
}

func (w *world) pod(name string, o options) *corev1.Pod {
	w.age++
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: cmp.Or(o["namespace"], "default"), Name: name, UID: types.UID("pod-" + name),
		CreationTimestamp: metav1.NewTime(epoch.Add(time.Duration(w.age) * time.Second))}}
	for _, template := range list(o["templates"]) {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: template, ResourceClaimTemplateName: ptr.To(template)})
	}
	for _, claim := range list(o["claims"]) {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: claim, ResourceClaimName: ptr.To(claim)})
	}
	requests := corev1.ResourceList{}
	for _, pair := range append(list(o["extended"]), "cpu:"+cmp.Or(o["cpu"], "1"), "memory:"+cmp.Or(o["memory"], "1Gi")) {
		i := strings.LastIndex(pair, ":")
		requests[corev1.ResourceName(pair[:i])] = resource.MustParse(pair[i+1:])
	}
	pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: requests, Limits: requests}}}
	if o["priority"] != "" {
		pod.Spec.Priority = ptr.To(int32(w.number(o, "priority")))
	}
	for _, pair := range list(o["select"]) {
		key, value, _ := strings.Cut(pair, ":")
		pod.Spec.NodeSelector = map[string]string{key: value}
	}
	for _, key := range list(o["tolerate"]) {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
	w.spread(pod, o)
	for _, gate := range list(o["gated"]) {
		pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: gate})
	}
	return pod
}

// budget NAME: what may be asked for.
func (w *world) budget(names []string, o options) {
	b := Budget{Name: names[0], Namespaces: list(o["namespaces"])}
	if o["gpus"] != "" {
		b.GPUs = ptr.To(w.number(o, "gpus"))
	}
	if o["price"] != "" {
		b.PricePerHour = ptr.To(resource.MustParse(o["price"]))
	}
	if o["rate"] != "" {
		b.Rate = &Rate{Nodes: w.number(o, "rate"), Period: "10m", Since: metav1.NewTime(epoch)}
	}
	w.Budgets = append(w.Budgets, b)
}

// headroom NAME COUNT CLASS: devices that are to be free.
func (w *world) headroom(names []string, o options) {
	count, err := strconv.Atoi(names[1])
	if err != nil {
		w.t.Fatal(err)
	}
	h := Headroom{Name: names[0], Devices: count, Groups: list(o["groups"])}
	h.Claim.Devices.Requests = []resourceapi.DeviceRequest{{Name: "device", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: names[2], Selectors: selectors(o["cel"]), AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}}}
	w.Headroom = append(w.Headroom, h)
}

func (w *world) number(o options, key string) int {
	if o[key] == "" {
		return 0
	}
	n, err := strconv.Atoi(o[key])
	if err != nil {
		w.t.Fatalf("%s: %v", key, err)
	}
	return n
}

func selectors(expression string) []resourceapi.DeviceSelector {
	if expression == "" {
		return nil
	}
	return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
}

func list(words string) []string {
	if words == "" {
		return nil
	}
	return strings.Split(words, ",")
}
