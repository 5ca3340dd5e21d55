package doctor

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// Kind is a part of the facts that somebody may not be allowed to read.
type Kind string

// Kinds, as kubectl names them.
const (
	KindDiscovery   Kind = "the API versions"
	KindGates       Kind = "the feature gates"
	KindNodes       Kind = "nodes"
	KindSlices      Kind = "resourceslices"
	KindPods        Kind = "pods"
	KindDaemonSets  Kind = "daemonsets"
	KindDeployments Kind = "deployments"
	KindLeases      Kind = "leases of kube-node-lease"
	KindTaintRules  Kind = "devicetaintrules"
	KindAutoscalers Kind = "horizontalpodautoscalers"
	KindKueue       Kind = "the configuration of Kueue"
	KindMachines    Kind = "virtualmachineinstances"
	KindTemplates   Kind = "resourceclaimtemplates"
	KindClaims      Kind = "resourceclaims"
	KindGroups      Kind = "gpunodegroups"
	KindPolicies    Kind = "gpupolicies"
	KindGPUNodes    Kind = "gpunodes"
	KindHeadrooms   Kind = "gpuheadrooms"
	KindBudgets     Kind = "gpubudgets"
)

// Facts are what the checks look at. Lists of what is large are reduced while they are read: see
// AddSlice, AddPod and AddLease.
type Facts struct {
	// Driver is the name of Mica's driver.
	Driver string
	// Now is the time of the API server.
	Now time.Time
	// Version of the API server, such as v1.37.1.
	Version string
	// Served has the resources of resource.k8s.io, mica.gpu and admissionregistration.k8s.io in the versions
	// that the checks look at, such as "resource.k8s.io/v1 resourceslices".
	Served map[string]bool
	// Lacking are the fields of mica.gpu that the API server does not know, as package crd has them.
	Lacking []string
	// Gates are the feature gates of the API server, as its metrics tell. Nil: nobody may read them.
	Gates map[string]bool

	Nodes       []corev1.Node
	Pools       map[PoolID]*Pool
	Pods        []Pod
	DaemonSets  []appsv1.DaemonSet
	Deployments []appsv1.Deployment
	// Skews are how far the clocks of nodes are ahead of the API server's, by node.
	Skews      map[string]time.Duration
	TaintRules []resourceapi.DeviceTaintRule
	Scalers    []Scaler
	Kueue      []Mapping
	// Machines has the requests of KubeVirt's machines that are for several devices, and Daemons those
	// of DaemonSets that take any.
	Machines, Daemons []ClaimRequest
	Groups            []v1alpha1.GPUNodeGroup
	Policies          []v1alpha1.GPUPolicy
	GPUNodes          []v1alpha1.GPUNode
	Headrooms         []v1alpha1.GPUHeadroom
	// Budgets are the names of GPUBudgets.
	Budgets []string

	// Unseen says why a kind could not be read, in a few words.
	Unseen map[Kind]string
}

// PoolID names a pool of a node.
type PoolID struct{ Driver, Node, Name string }

// Pool is what counts of the slices of one pool.
type Pool struct {
	Generation int64
	// Announced is how many slices the newest generation is to have.
	Announced int64
	// Slices are those of the newest generation, and Older those of earlier ones, by name.
	Slices, Older []string
	// Since is when the newest slice of the newest generation was written first.
	Since   time.Time
	Devices int
	// Counters are the names of all counters.
	Counters map[string]bool
	// DriverVersions are those of the devices.
	DriverVersions map[string]bool
	// Foreign are partitions that somebody else has made: they have a UUID before any claim.
	Foreign []string
}

// AddSlice counts a slice. Slices that are of no single node count for their counters only.
func (f *Facts) AddSlice(slice *resourceapi.ResourceSlice) {
	if f.Pools == nil {
		f.Pools = map[PoolID]*Pool{}
	}
	id := PoolID{Driver: slice.Spec.Driver, Name: slice.Spec.Pool.Name}
	if slice.Spec.NodeName != nil {
		id.Node = *slice.Spec.NodeName
	}
	pool, known := f.Pools[id]
	if !known {
		pool = &Pool{Generation: slice.Spec.Pool.Generation, Counters: map[string]bool{}, DriverVersions: map[string]bool{}}
		f.Pools[id] = pool
	}
	switch generation := slice.Spec.Pool.Generation; {
	case generation < pool.Generation:
		pool.Older = append(pool.Older, slice.Name)
		return
	case generation > pool.Generation:
		*pool = Pool{Generation: generation, Older: append(pool.Older, pool.Slices...), Counters: map[string]bool{}, DriverVersions: map[string]bool{}}
	}
	pool.add(slice)
}

func (p *Pool) add(slice *resourceapi.ResourceSlice) {
	p.Announced = slice.Spec.Pool.ResourceSliceCount
	p.Slices = append(p.Slices, slice.Name)
	if created := slice.CreationTimestamp.Time; created.After(p.Since) {
		p.Since = created
	}
	for _, set := range slice.Spec.SharedCounters {
		for name := range set.Counters {
			p.Counters[name] = true
		}
	}
	p.Devices += len(slice.Spec.Devices)
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		if version := d.Attributes["driverVersion"].VersionValue; version != nil {
			p.DriverVersions[*version] = true
		}
		if kind, uuid := d.Attributes["type"].StringValue, d.Attributes["uuid"].StringValue; kind != nil && *kind == "mig" && uuid != nil {
			p.Foreign = append(p.Foreign, d.Name)
		}
	}
}

// Complete tells whether the scheduler gives devices of the pool.
func (p *Pool) Complete() bool { return int64(len(p.Slices)) == p.Announced }

// Pod is what counts of a pod.
type Pod struct {
	Namespace, Name, Node string
	// DaemonSet is its owner; empty if that is none.
	DaemonSet string
	Ready     bool
	// Since is when it became ready.
	Since time.Time
	// TakesAll is the name of a container that asks NVIDIA's runtime for all GPUs, though it
	// is not privileged.
	TakesAll string
}

// AddPod keeps a pod if a check looks at it: those of DaemonSets, and those that take GPUs by
// an environment variable.
func (f *Facts) AddPod(pod *corev1.Pod) {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return
	}
	kept := Pod{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, TakesAll: takesAll(pod)}
	for _, owner := range pod.OwnerReferences {
		if owner.Kind == "DaemonSet" {
			kept.DaemonSet = owner.Name
		}
	}
	if kept.DaemonSet == "" && kept.TakesAll == "" {
		return
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			kept.Ready, kept.Since = true, condition.LastTransitionTime.Time
		}
	}
	f.Pods = append(f.Pods, kept)
}

// takesAll names a container that has every GPU of its node if NVIDIA's runtime is the default.
// What is privileged has them anyway, and means to.
func takesAll(pod *corev1.Pod) string {
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if security := container.SecurityContext; security != nil && security.Privileged != nil && *security.Privileged {
			continue
		}
		for _, variable := range container.Env {
			if variable.Name == envVisibleDevices && variable.Value == "all" {
				return container.Name
			}
		}
	}
	return ""
}

// Scaler is a HorizontalPodAutoscaler.
type Scaler struct {
	Namespace, Name string
	// Target is the kind and name of what it scales.
	Target string
}

// Mapping is an entry of Kueue's deviceClassMappings that counts by a counter.
type Mapping struct {
	Name, Counter, Driver string
}

// ClaimRequest is a request of a claim by which an object asks for devices.
type ClaimRequest struct {
	// Namespace and Name are the object's.
	Namespace, Name string
	// Claim is the ResourceClaim or ResourceClaimTemplate, as kubectl takes it, and Request is the one in it.
	Claim, Request string
}

// AddLease compares the clock of a node with the API server's: kubelet writes spec.renewTime by its
// own, and the API server the time of kubelet's last change.
func (f *Facts) AddLease(node string, renewed, written time.Time) {
	if f.Skews == nil {
		f.Skews = map[string]time.Duration{}
	}
	f.Skews[node] = renewed.Sub(written)
}

// byNode has what is published for each node by Mica's driver.
func (f *Facts) byNode() map[string][]*Pool {
	pools := map[string][]*Pool{}
	for id, pool := range f.Pools {
		if id.Driver == f.Driver && id.Node != "" {
			pools[id.Node] = append(pools[id.Node], pool)
		}
	}
	return pools
}

// MultipleDevices names the requests that are for more than one device.
func MultipleDevices(requests []resourceapi.DeviceRequest) []string {
	var names []string
	for _, request := range requests {
		if exactly := request.Exactly; exactly != nil && several(exactly.AllocationMode, exactly.Count) ||
			slices.ContainsFunc(request.FirstAvailable, func(s resourceapi.DeviceSubRequest) bool { return several(s.AllocationMode, s.Count) }) {
			names = append(names, request.Name)
		}
	}
	return names
}

// TakingDevices names the requests that take devices: not those with admin access, which only look.
func TakingDevices(requests []resourceapi.DeviceRequest) []string {
	var names []string
	for _, request := range requests {
		if exactly := request.Exactly; exactly == nil || exactly.AdminAccess == nil || !*exactly.AdminAccess {
			names = append(names, request.Name)
		}
	}
	return names
}

func several(mode resourceapi.DeviceAllocationMode, count int64) bool {
	return mode == resourceapi.DeviceAllocationModeAll || count > 1
}
