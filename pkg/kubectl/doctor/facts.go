package doctor

import (
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/gpu"
)

// Kind is a part of the facts that a user may lack the right to read.
type Kind string

// Kinds, as kubectl names them.
const (
	KindDiscovery   Kind = "the API versions"
	KindGates       Kind = "the feature gates"
	KindNodes       Kind = "nodes"
	KindSlices      Kind = "resourceslices"
	KindClasses     Kind = "deviceclasses"
	KindPods        Kind = "pods"
	KindDaemonSets  Kind = "daemonsets"
	KindDeployments Kind = "deployments"
	KindQuotas      Kind = "resourcequotas"
	KindTaintRules  Kind = "devicetaintrules"
	KindTemplates   Kind = "resourceclaimtemplates"
	KindGroups      Kind = "gpunodegroups"
	KindPolicies    Kind = "gpupolicies"
	KindGPUNodes    Kind = "gpunodes"
	KindHeadrooms   Kind = "gpuheadrooms"
)

// Facts are the input of all checks.
type Facts struct {
	// Driver is the name of Mica's driver.
	Driver string
	// Now is the time of the API server.
	Now time.Time
	// Version of the API server, such as v1.37.1.
	Version string
	// Served has the resources of resource.k8s.io and mica.gpu, such as "resource.k8s.io/v1 resourceslices".
	Served map[string]bool
	// Lacking are the fields of mica.gpu that the API server does not know: see package crd.
	Lacking []string
	// Gates are the feature gates in the API server's metrics; nil if the user may not read them.
	Gates map[string]bool

	Nodes []*corev1.Node
	// Slices are those of all drivers. They may be compact.
	Slices []*resourceapi.ResourceSlice
	Pods   []Pod
	// ExtendedResources are those that DeviceClasses serve.
	ExtendedResources map[corev1.ResourceName]bool
	DaemonSets        []*appsv1.DaemonSet
	Deployments       []*appsv1.Deployment
	Quotas            []*corev1.ResourceQuota
	TaintRules        []*resourceapi.DeviceTaintRule
	// DaemonClaims are the requests by which DaemonSets take devices.
	DaemonClaims []ClaimRequest
	// PartRequests are the requests in templates for a part of a whole GPU.
	PartRequests []PartRequest
	Groups       []*v1alpha1.GPUNodeGroup
	Policies     []*v1alpha1.GPUPolicy
	GPUNodes     []*v1alpha1.GPUNode
	Headrooms    []*v1alpha1.GPUHeadroom

	// Unseen is why a kind could not be read, in a few words.
	Unseen map[Kind]string
}

// Pool is the newest generation of a pool.
type Pool struct {
	devices.Pool
	// Older are the slices of earlier generations.
	Older []*resourceapi.ResourceSlice
}

// pools returns the pools of all drivers in order.
func (f *Facts) pools() []Pool {
	var pools []Pool
	at := map[devices.PoolID]int{}
	for i, newest := range devices.Pools(f.Slices) {
		pools = append(pools, Pool{Pool: newest})
		at[newest.ID] = i
	}
	for _, slice := range f.Slices {
		if pool := &pools[at[devices.PoolOf(slice)]]; slice.Spec.Pool.Generation < pool.Slices[0].Spec.Pool.Generation {
			pool.Older = append(pool.Older, slice)
		}
	}
	return pools
}

// node is empty for a pool of several nodes.
func (p Pool) node() string { return ptr.Deref(p.Slices[0].Spec.NodeName, "") }

// young reports whether a slice of the pool was created within patience.
func (f *Facts) young(p Pool) bool {
	return slices.ContainsFunc(p.Slices, func(slice *resourceapi.ResourceSlice) bool { return f.Now.Sub(slice.CreationTimestamp.Time) < patience })
}

// Pod is the part of a pod that checks read.
type Pod struct {
	Namespace, Name, Node string
	// Owner is the controller's kind and name, such as daemonset/mica; empty if there is none.
	Owner string
	Ready bool
	// Since is when it became ready.
	Since time.Time
	// TakesAll is the name of a container that asks NVIDIA's runtime for all GPUs and is not privileged.
	TakesAll string
	// Resources of a device plugin that its containers ask for, sorted.
	Resources []corev1.ResourceName
}

// AddPod adds a pod that a check reads: one of a DaemonSet, or one that asks for GPUs without a claim.
func (f *Facts) AddPod(pod *corev1.Pod) {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return
	}
	kept := Pod{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, TakesAll: takesAll(pod), Resources: pluginResources(pod)}
	for _, owner := range pod.OwnerReferences {
		kept.Owner = strings.ToLower(owner.Kind) + "/" + owner.Name
	}
	if !strings.HasPrefix(kept.Owner, "daemonset/") && kept.TakesAll == "" && len(kept.Resources) == 0 {
		return
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			kept.Ready, kept.Since = true, condition.LastTransitionTime.Time
		}
	}
	f.Pods = append(f.Pods, kept)
}

// takesAll returns the container that gets every GPU of its node if NVIDIA's runtime is the default.
// Privileged containers have all devices anyway.
func takesAll(pod *corev1.Pod) string {
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if security := container.SecurityContext; security != nil && ptr.Deref(security.Privileged, false) {
			continue
		}
		if valueOf(container.Env, envVisibleDevices) == "all" {
			return container.Name
		}
	}
	return ""
}

func pluginResources(pod *corev1.Pod) []corev1.ResourceName {
	names := map[corev1.ResourceName]bool{}
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for name, quantity := range container.Resources.Limits {
			if isDevicePlugins(name) && !quantity.IsZero() {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// ClaimRequest is a request in a ResourceClaimTemplate that an object uses.
type ClaimRequest struct {
	// Namespace and Name are the object's.
	Namespace, Name   string
	Template, Request string
}

// PartRequest is a request in a ResourceClaimTemplate for shares, or for memory, of a whole GPU.
type PartRequest struct {
	Namespace, Template, Request string
	Shares, Memory               resource.Quantity
}

// AddTemplate adds the requests that ask for a part of a whole GPU.
func (f *Facts) AddTemplate(template *resourceapi.ResourceClaimTemplate) {
	add := func(request, class string, capacity *resourceapi.CapacityRequirements) {
		if class != f.Driver || capacity == nil { // the chart names the class for the driver
			return
		}
		part := PartRequest{template.Namespace, template.Name, request, capacity.Requests[gpu.CapacityShares], capacity.Requests[gpu.CapacityMemory]}
		if !part.Shares.IsZero() || !part.Memory.IsZero() {
			f.PartRequests = append(f.PartRequests, part)
		}
	}
	for _, request := range template.Spec.Spec.Devices.Requests {
		if exactly := request.Exactly; exactly != nil {
			add(request.Name, exactly.DeviceClassName, exactly.Capacity)
		}
		for _, alternative := range request.FirstAvailable {
			add(request.Name+"/"+alternative.Name, alternative.DeviceClassName, alternative.Capacity)
		}
	}
}

// byNode returns the pools of Mica's driver per node.
func (f *Facts) byNode() map[string][]Pool {
	pools := map[string][]Pool{}
	for _, pool := range f.pools() {
		if node := pool.node(); pool.ID.Driver == f.Driver && node != "" {
			pools[node] = append(pools[node], pool)
		}
	}
	return pools
}
