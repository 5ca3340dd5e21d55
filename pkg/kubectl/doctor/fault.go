package doctor

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
)

// Fault is a mistake in releases of Kubernetes that Mica cannot work round.
type Fault struct {
	// Issue is the number of its issue or pull request in kubernetes/kubernetes.
	Issue int
	// Kubelet reports that kubelet has the fault. Otherwise the control plane has it.
	Kubelet bool
	// Since is the first release of concern with the fault, and Fixed the first one without it in each minor
	// version that has the fix, in order. Later minor versions have it, too.
	Since string
	Fixed []string
	// Harm is what goes wrong, as the end of a sentence.
	Harm string

	severity Severity
	// concerns reports whether the fault can harm the cluster. It is nil if it can harm any.
	concerns func(*Facts) bool
}

// Faults returns all faults that the doctor knows. The releases with a fix are those whose source has it:
// pkg/kubelet/cm/dra and pkg/controller/devicetainteviction of k8s.io/kubernetes, and structured/internal of
// k8s.io/dynamic-resource-allocation. A fault that no release has fixed is not among them.
func Faults() []Fault {
	return []Fault{{
		Issue: 133920, Kubelet: true, Since: "1.34.0", Fixed: []string{"1.34.2"}, severity: Error,
		Harm: "after 30 minutes without a call, kubelet calls the plugin no more, and pods with claims stay in ContainerCreating until kubelet restarts",
	}, {
		Issue: 135901, Kubelet: true, Since: "1.34.0", Fixed: []string{"1.34.4", "1.35.1"}, severity: Warning,
		Harm: "a pod does not start if it has several claims and another pod of the node uses one of them already",
	}, {
		Issue: 139772, Kubelet: true, Since: "1.34.0", Fixed: []string{"1.37.0"}, severity: Info,
		Harm: "a pod stays in Terminating if a client has removed the names of its claims from its status",
	}, {
		Issue: 140212, Kubelet: true, Since: "1.34.0", Fixed: []string{"1.37.0"}, severity: Info,
		Harm: "the end of a pod that never started can take a shared claim's devices from the other pods of the claim",
	}, {
		Issue: 139034, Since: "1.36.0", Fixed: []string{"1.36.2"}, severity: Warning,
		Harm: "the scheduler can allocate a GPU in shares and its partitions at the same time",
	}, {
		Issue: 140431, Since: "1.36.0", Fixed: []string{"1.36.3"}, severity: Warning,
		Harm: "a pod can stay pending although a node has the partitions that it asks for",
	}, {
		Issue: 141290, Since: "1.36.0", Fixed: []string{"1.37.2"}, severity: Warning, concerns: evictsExtended,
		Harm: "the effect NoExecute does not evict pods that ask for GPUs by an extended resource, such as nvidia.com/gpu",
	}}
}

// evictsExtended reports whether a taint of a device is to evict pods, and a DeviceClass has an extended resource.
func evictsExtended(f *Facts) bool {
	byPolicy := slices.ContainsFunc(f.Policies, func(p *v1alpha1.GPUPolicy) bool {
		return slices.ContainsFunc(p.Spec.Health, func(e v1alpha1.FaultEffect) bool { return e.Effect == string(resourceapi.DeviceTaintEffectNoExecute) })
	})
	byRule := slices.ContainsFunc(f.TaintRules, func(r *resourceapi.DeviceTaintRule) bool {
		return r.Spec.Taint.Effect == resourceapi.DeviceTaintEffectNoExecute
	})
	return len(f.ExtendedResources) > 0 && (byPolicy || byRule)
}

// fix returns the release to move to from a release with the fault; empty: the release does not have it, or
// is no version. Distributions' suffixes of versions do not count.
func (t Fault) fix(release string) string {
	v, err := version.ParseGeneric(release)
	if err != nil || v.LessThan(version.MustParseGeneric(t.Since)) {
		return ""
	}
	for _, text := range t.Fixed {
		fixed := version.MustParseGeneric(text)
		if v.Major() == fixed.Major() && v.Minor() == fixed.Minor() {
			if v.AtLeast(fixed) {
				return ""
			}
			return text
		}
		if v.LessThan(fixed) {
			return text
		}
	}
	return ""
}

func knownFaults(f *Facts) []Finding {
	kubelets := f.kubelets()
	var found []Finding
	for _, fault := range Faults() {
		if fault.concerns != nil && !fault.concerns(f) {
			continue
		}
		add := func(object, release, part string) {
			to := fault.fix(release)
			if to == "" {
				return
			}
			found = append(found, Finding{
				Severity: fault.severity, Object: object, names: map[string]string{"PART": part, "VERSION": to},
				Message: fmt.Sprintf("%s runs %s: %s (kubernetes/kubernetes#%d).", part, release, fault.Harm, fault.Issue),
			})
		}
		if !fault.Kubelet {
			add("apiserver", f.Version, "the control plane")
			continue
		}
		for _, k := range kubelets {
			part := "kubelet on " + k.first
			if k.others > 0 {
				part += " and " + excerpt.Count(k.others, "more node")
			}
			add("node/"+k.first, k.release, part)
		}
	}
	return found
}

// kubelet is a release of kubelet, and the nodes that run it.
type kubelet struct {
	release, first string
	others         int
}

// kubelets returns the releases on the nodes that Mica serves, in the order of the nodes.
func (f *Facts) kubelets() []kubelet {
	published, plugins := f.byNode(), f.sets(componentPlugin)
	serves := func(node *corev1.Node) bool { return len(published[node.Name]) > 0 || anySelects(plugins, node) }
	var all []kubelet
	for _, node := range f.Nodes {
		release := node.Status.NodeInfo.KubeletVersion
		if !serves(node) {
			continue
		}
		if i := slices.IndexFunc(all, func(k kubelet) bool { return k.release == release }); i >= 0 {
			all[i].others++
			continue
		}
		all = append(all, kubelet{release: release, first: node.Name})
	}
	return all
}
