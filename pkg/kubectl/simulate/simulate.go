// Package simulate says where pods would go before anybody creates them, and which devices they would
// get: on the cluster as it is, on nodes that its groups could add, or on nodes that only the catalogue
// knows. It reads manifests, shows the planner a cluster that has them, and writes what comes of it. It
// creates nothing, and decides nothing that pkg/scaleout does not.
package simulate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/explain"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Kubernetes is the version whose scheduler is simulated, with its feature gates as they are by default.
const Kubernetes = "1.37"

// Result is what becomes of the pods.
type Result struct {
	// Kubernetes is the version whose scheduler is simulated.
	Kubernetes string `json:"kubernetes"`
	// Fits tells that every pod has a node, one that exists or one that a group would add by itself.
	Fits   bool     `json:"fits"`
	Pods   []Pod    `json:"pods"`
	Growth []Growth `json:"growth,omitempty"`
	// Ignored are the objects of the files that were not looked at.
	Ignored []string `json:"ignored,omitempty"`
}

// Pod is where a pod goes.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Owner is what the pod is of, such as Deployment/llm.
	Owner string `json:"owner,omitempty"`
	// Outcome is one of scaleout's, or NoDevices.
	Outcome scaleout.Outcome `json:"outcome"`
	// Node is a node that exists. Of one that does not, Group and NewNode, its number, are known.
	Node    string  `json:"node,omitempty"`
	Group   string  `json:"group,omitempty"`
	NewNode int     `json:"newNode,omitempty"`
	Claims  []Claim `json:"claims,omitempty"`
	Why     string  `json:"why,omitempty"`
	// Verdicts has, of a pod without a node, what each kind of nodes lacks.
	Verdicts []explain.Verdict `json:"verdicts,omitempty"`
}

// Claim is what a pod gets for one of its claims.
type Claim struct {
	Name    string   `json:"name"`
	Devices []Device `json:"devices"`
}

// Device is one that a claim gets, or a share of one.
type Device struct {
	Request string `json:"request"`
	Driver  string `json:"driver"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	// Consumes is what a share takes of the device's capacities.
	Consumes map[string]resource.Quantity `json:"consumes,omitempty"`
}

// Growth is how many nodes a group would add, for these pods and for those that wait already.
type Growth struct {
	Group string `json:"group"`
	Nodes int    `json:"nodes"`
	// PricePerHour is that of one node, where the group says so.
	PricePerHour string `json:"pricePerHour,omitempty"`
	// Advised tells that nobody makes the group grow by itself.
	Advised bool `json:"advised,omitempty"`
}

// NoDevices is the outcome of pods that ask for none: where they go is not simulated.
const NoDevices scaleout.Outcome = "NoDevices"

// Fits tells that the pod has a node, one that exists or one that a group would add by itself.
func (p Pod) Fits() bool {
	return slices.Contains([]scaleout.Outcome{scaleout.FitsNode, scaleout.FitsStarting, scaleout.NeedsNode, NoDevices}, p.Outcome)
}

// Run plans with a view in which the workloads' pods are, and says what becomes of them.
func Run(ctx context.Context, v *view.View, workloads *Manifest) (*Result, error) {
	for _, pod := range workloads.pods {
		// What holds pods back that exist, as a claim that nobody has made, is no news of these.
		delete(v.Held, pod.UID)
	}
	planner := scaleout.NewPlanner(v.Snapshot)
	explained, err := explain.Pods(ctx, planner)
	if err != nil {
		return nil, fmt.Errorf("plan for the pods: %w", err)
	}
	placed, err := planner.Placements(ctx)
	if err != nil {
		return nil, fmt.Errorf("plan for the pods: %w", err)
	}
	decision, err := planner.Decide(ctx)
	if err != nil {
		return nil, fmt.Errorf("plan for the pods: %w", err)
	}
	result := &Result{Kubernetes: Kubernetes, Fits: true, Ignored: workloads.Ignored, Growth: growth(v.Snapshot, decision)}
	told := byName(explained, func(e explain.Explanation) types.NamespacedName { return e.Pod })
	places := byName(placed, func(p scaleout.Placement) types.NamespacedName { return p.Pod })
	for _, pod := range workloads.pods {
		name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		made := Pod{Namespace: pod.Namespace, Name: pod.Name, Owner: pod.Annotations[annotationOwner]}
		if e, known := told[name]; known {
			made.explain(e)
			made.place(places[name])
		} else {
			made.Outcome, made.Why = withoutDevices(pod)
		}
		result.Fits = result.Fits && made.Fits()
		result.Pods = append(result.Pods, made)
	}
	return result, nil
}

func byName[T any](all []T, name func(T) types.NamespacedName) map[types.NamespacedName]T {
	found := make(map[types.NamespacedName]T, len(all))
	for _, one := range all {
		found[name(one)] = one
	}
	return found
}

// explain takes over what the plan says of the pod. Where it fits there is nothing to explain.
func (p *Pod) explain(e explain.Explanation) {
	p.Outcome = e.Outcome
	if p.Outcome == scaleout.Advised || !p.Fits() {
		p.Why, p.Verdicts = e.Summary, e.Verdicts
	}
}

func (p *Pod) place(at scaleout.Placement) {
	p.Node, p.Group, p.NewNode = at.Node, at.Group, at.New
	for _, claim := range at.Claims {
		made := Claim{Name: claim.Called, Devices: []Device{}}
		for _, r := range claim.Results {
			made.Devices = append(made.Devices, Device{Request: r.Request, Driver: r.Driver, Pool: r.Pool, Device: r.Device, Consumes: consumed(r)})
		}
		p.Claims = append(p.Claims, made)
	}
	slices.SortStableFunc(p.Claims, func(a, b Claim) int { return cmp.Compare(a.Name, b.Name) })
}

func consumed(r resourceapi.DeviceRequestAllocationResult) map[string]resource.Quantity {
	if r.ShareID == nil || len(r.ConsumedCapacity) == 0 {
		return nil
	}
	all := make(map[string]resource.Quantity, len(r.ConsumedCapacity))
	for name, quantity := range r.ConsumedCapacity {
		all[string(name)] = quantity
	}
	return all
}

// nvidiaResources begin the names of resources that stand for GPUs.
const nvidiaResources = "nvidia.com/"

// withoutDevices is what there is to say of a pod that the planner does not plan: it asks for no
// devices, or for a resource which only a device plugin could give.
func withoutDevices(pod *corev1.Pod) (scaleout.Outcome, string) {
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for name, quantity := range container.Resources.Requests {
			if strings.HasPrefix(string(name), nvidiaResources) && !quantity.IsZero() {
				return scaleout.Blocked, fmt.Sprintf("it requests %s, and no DeviceClass stands for that resource: set extendedResourceName in a DeviceClass, or use a claim; what a device plugin offers is not simulated", name)
			}
		}
	}
	return NoDevices, "it asks for no devices: where it goes is not simulated"
}

// growth has the groups by name.
func growth(s scaleout.Snapshot, decision scaleout.Decision) []Growth {
	var all []Growth
	for _, grown := range decision.Growth {
		made := Growth{Group: grown.Group, Nodes: len(grown.Nodes)}
		at := slices.IndexFunc(s.Groups, func(g scaleout.Group) bool { return g.Name == grown.Group })
		if at >= 0 {
			made.Advised = s.Groups[at].Advised
			if price := s.Groups[at].PricePerHour; price != nil {
				made.PricePerHour = scaleout.Price(*price)
			}
		}
		all = append(all, made)
	}
	slices.SortFunc(all, func(a, b Growth) int { return cmp.Compare(a.Group, b.Group) })
	return all
}
