package fit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// load is what a node's pods leave of it, besides devices. It is immutable.
type load struct {
	// free are the resources that pods request, in the order of the vocabulary: CPU in thousandths, others in units.
	// pods is the number of further pods.
	free []int64
	pods int64
	// ports are taken. neighbors are the pods that have affinities or that affinities may select. Both are sorted.
	ports     []hostPort
	neighbors []*neighbor
}

// request is a pod's request for a resource.
type request struct {
	name   corev1.ResourceName
	index  int
	amount int64
	// extended reports whether devices provide it if the node does not offer it.
	extended bool
}

// hostPort is a port of the node.
type hostPort struct {
	ip, protocol string
	port         int32
}

func (p hostPort) compare(other hostPort) int {
	return cmp.Or(cmp.Compare(p.port, other.port), cmp.Compare(p.protocol, other.protocol), cmp.Compare(p.ip, other.ip))
}

const anyAddress = "0.0.0.0"

// conflicts reports whether two pods cannot have these ports on one node.
func (p hostPort) conflicts(other hostPort) bool {
	return p.port == other.port && p.protocol == other.protocol &&
		(p.ip == other.ip || p.ip == anyAddress || other.ip == anyAddress)
}

// amount is a quantity in the scheduler's unit.
func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// load is that of a node with its pods.
func (c *Cluster) load(n Node) load {
	l := load{free: make([]int64, len(c.words.resources))}
	allocatable := n.Object.Status.Allocatable
	for i, name := range c.words.resources {
		l.free[i] = amount(name, allocatable[name])
	}
	l.pods = allocatable.Pods().Value()
	for _, pod := range n.Pods {
		if Ended(pod) {
			continue
		}
		l.pods--
		for name, quantity := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{
			UseStatusResources: true,
			InPlacePodLevelResourcesVerticalScalingEnabled: true,
		}) {
			if i, ok := c.words.index[name]; ok {
				l.free[i] -= amount(name, quantity)
			}
		}
		l.ports = append(l.ports, portsOf(pod)...)
		if neighbor := c.neighbors.of(pod); neighbor != nil {
			l.neighbors = append(l.neighbors, neighbor)
		}
	}
	l.sort()
	return l
}

// Ended reports whether the pod has ended, so that it takes no room.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func (l *load) sort() {
	slices.SortFunc(l.ports, hostPort.compare)
	l.ports = slices.Compact(l.ports)
	slices.SortFunc(l.neighbors, func(a, b *neighbor) int { return cmp.Compare(a.serial, b.serial) })
	l.neighbors = slices.Compact(l.neighbors)
}

func (l *load) key() string {
	s := make(signature, 0, 64)
	for _, free := range l.free {
		s.number(free)
	}
	s.number(l.pods)
	s.number(int64(len(l.ports)))
	for _, p := range l.ports {
		s.text(p.ip)
		s.text(p.protocol)
		s.number(int64(p.port))
	}
	for _, n := range l.neighbors {
		s.number(int64(n.serial))
	}
	return string(s)
}

// portsOf are the host ports of containers that run as long as the pod.
func portsOf(pod *corev1.Pod) []hostPort {
	var ports []hostPort
	containers := pod.Spec.Containers
	for i := range pod.Spec.InitContainers {
		if sidecar(&pod.Spec.InitContainers[i]) {
			containers = append(slices.Clip(containers), pod.Spec.InitContainers[i])
		}
	}
	for i := range containers {
		for _, p := range containers[i].Ports {
			if p.HostPort > 0 {
				ports = append(ports, hostPort{
					ip:       cmp.Or(p.HostIP, anyAddress),
					protocol: cmp.Or(string(p.Protocol), string(corev1.ProtocolTCP)),
					port:     p.HostPort,
				})
			}
		}
	}
	return ports
}

// sidecar reports whether an init container runs as long as the pod.
func sidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// missOfPorts is the miss for a port that is taken.
func (l *load) missOfPorts(p *Pod) *Miss {
	for _, want := range p.ports {
		for _, taken := range l.ports {
			if want.conflicts(taken) {
				return &Miss{Reason: ReasonPods, Text: fmt.Sprintf("the node's port %d/%s is taken by another pod", want.port, want.protocol)}
			}
		}
	}
	return nil
}

// with is the load with one more pod.
func (l *load) with(p *Pod, h *traits) (load, *Miss) {
	if l.pods < 1 {
		return load{}, &Miss{Reason: ReasonResources, Text: "the node has as many pods as it may have"}
	}
	var short []string
	left := load{free: slices.Clone(l.free), pods: l.pods - 1, ports: l.ports, neighbors: l.neighbors}
	for _, r := range p.requests {
		if r.extended && !h.offers[r.name] {
			continue // devices provide it
		}
		if r.amount > 0 && r.amount > l.free[r.index] {
			short = append(short, fmt.Sprintf("%s of %s (%s free)", written(r.name, r.amount), r.name, written(r.name, max(0, l.free[r.index]))))
		}
		left.free[r.index] -= r.amount
	}
	if len(short) > 0 {
		return load{}, &Miss{Reason: ReasonResources, Text: "the pod requests " + strings.Join(short, ", and ")}
	}
	if len(p.ports) > 0 || p.self != nil {
		left.ports = slices.Concat(l.ports, p.ports)
		if p.self != nil {
			left.neighbors = append(slices.Clip(l.neighbors), p.self)
		}
		left.sort()
	}
	return left, nil
}

// written is an amount as people write it.
func written(name corev1.ResourceName, amount int64) string {
	switch name {
	case corev1.ResourceCPU:
		return resource.NewMilliQuantity(amount, resource.DecimalSI).String()
	case corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return resource.NewQuantity(amount, resource.BinarySI).String()
	default:
		return resource.NewQuantity(amount, resource.DecimalSI).String()
	}
}
