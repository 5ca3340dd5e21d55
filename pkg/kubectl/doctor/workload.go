package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

func workloadChecks() []Check {
	return []Check{{
		Name:     "two-autoscalers",
		Severity: Error,
		Looks:    "the targets of HorizontalPodAutoscalers, those of KEDA included",
		Why:      "Two autoscalers of one workload undo each other's sizes, and KEDA's cap on what there are GPUs for does not hold.",
		Fix:      "kubectl --namespace NAMESPACE delete horizontalpodautoscaler SCALER",
		Source:   "Kubernetes' documentation, Horizontal Pod Autoscaling, AmbiguousSelector; KEDA's FAQ",
		needs:    []Kind{KindAutoscalers},
		find:     twoAutoscalers,
	}, {
		Name:     "taint-rule-selector",
		Severity: Error,
		Looks:    "DeviceTaintRules with a selector that is empty. One without a selector selects nothing",
		Why:      "A rule with an empty selector is for every device of the cluster, of all drivers: no claim is allocated, and with NoExecute every pod with a device is deleted.",
		Fix:      "kubectl delete devicetaintrule RULE",
		Source:   "k8s.io/api/resource/v1, DeviceTaintRuleSpec.deviceSelector",
		needs:    []Kind{KindTaintRules},
		find:     taintRuleSelector,
	}, {
		Name:     "kubevirt-count",
		Severity: Error,
		Looks:    "claims of VirtualMachineInstances whose requests are for more than one device",
		Why:      "KubeVirt takes exactly one device per request, and does not start a machine with more.",
		Fix:      "In CLAIM of namespace NAMESPACE, replace the request REQUEST by one request with count: 1 for each GPU, and name each in spec.domain.devices.gpus.",
		Source:   "kubevirt/kubevirt 1.9, GPUsWithDRA",
		needs:    []Kind{KindMachines, KindTemplates, KindClaims},
		find:     kubevirtCount,
	}, {
		Name:     "daemonset-claims",
		Severity: Warning,
		Looks:    "the claims of DaemonSets, where there are GPUNodeGroups",
		Why:      "A DaemonSet takes its devices on each new node, and neither Cluster Autoscaler nor Mica counts them: a node is bought for a pod that finds no device there.",
		Fix:      "If the DaemonSet only looks at GPUs, set adminAccess: true in request REQUEST of CLAIM, and: kubectl label namespace NAMESPACE resource.kubernetes.io/admin-access=true. Else run it as a Deployment.",
		Source:   "kubernetes/autoscaler#7684; Kubernetes' documentation, Dynamic Resource Allocation, Admin access",
		needs:    []Kind{KindDaemonSets, KindGroups, KindTemplates, KindClaims},
		find:     daemonSetClaims,
	}, {
		Name:     "kueue-counter",
		Severity: Error,
		Looks:    "the counters that deviceClassMappings of Kueue name, and those of published slices",
		Why:      "Kueue admits no job of a mapping whose counter no device has. Counters exist only on GPUs that are offered in more than one way.",
		Fix:      "Offer the GPUs in another shape, too, by their GPUPolicy, or remove sources from the mapping to charge devices by number: see docs on Kueue.",
		Source:   "kubernetes-sigs/kueue#10108, #15550",
		needs:    []Kind{KindKueue, KindSlices},
		find:     kueueCounter,
	}}
}

func twoAutoscalers(f *Facts) []Finding {
	type target struct{ namespace, name string }
	scalers := map[target][]string{}
	for _, s := range f.Scalers {
		at := target{s.Namespace, s.Target}
		scalers[at] = append(scalers[at], s.Name)
	}
	var found []Finding
	for at, names := range scalers {
		if len(names) < 2 {
			continue
		}
		slices.Sort(names)
		found = append(found, Finding{
			Object:  strings.ToLower(at.name),
			Message: fmt.Sprintf("HorizontalPodAutoscalers %s in namespace %s scale the same target.", strings.Join(names, " and "), at.namespace),
			names:   map[string]string{"NAMESPACE": at.namespace, "SCALER": last(names)},
		})
	}
	return found
}

// last is the one to give up: KEDA makes its own again.
func last(names []string) string {
	for _, name := range names {
		if !strings.HasPrefix(name, "keda-hpa-") {
			return name
		}
	}
	return names[len(names)-1]
}

func taintRuleSelector(f *Facts) []Finding {
	var found []Finding
	for _, rule := range f.TaintRules {
		if s := rule.Spec.DeviceSelector; s == nil || s.Driver != nil || s.Pool != nil || s.Device != nil {
			continue
		}
		finding := Finding{
			Object:  "devicetaintrule/" + rule.Name,
			Message: fmt.Sprintf("The rule puts the taint %s:%s on every device of the cluster.", rule.Spec.Taint.Key, rule.Spec.Taint.Effect),
			names:   map[string]string{"RULE": rule.Name},
		}
		if rule.Spec.Taint.Effect == resourceapi.DeviceTaintEffectNone {
			finding.Severity = Info
		}
		found = append(found, finding)
	}
	return found
}

func kubevirtCount(f *Facts) []Finding {
	return asking(f.Machines, "virtualmachineinstance/", "Request %s of %s in namespace %s is for more than one device.")
}

func daemonSetClaims(f *Facts) []Finding {
	if len(f.Groups) == 0 {
		return nil
	}
	return asking(f.Daemons, "daemonset/", "By request %s of %s in namespace %s, each pod of the DaemonSet takes devices.")
}

// asking has a finding per request, of which the message names request, claim and namespace.
func asking(all []ClaimRequest, kind, message string) []Finding {
	var found []Finding
	for _, r := range all {
		found = append(found, Finding{
			Object:  kind + r.Name,
			Message: fmt.Sprintf(message, r.Request, r.Claim, r.Namespace),
			names:   map[string]string{"CLAIM": r.Claim, "NAMESPACE": r.Namespace, "REQUEST": r.Request},
		})
	}
	return found
}

func kueueCounter(f *Facts) []Finding {
	var found []Finding
	for _, m := range f.Kueue {
		published, counters := false, map[string]bool{}
		for id, pool := range f.Pools {
			if id.Driver == m.Driver {
				published = true
				maps.Copy(counters, pool.Counters)
			}
		}
		// Of a driver whose nodes are all at zero nothing is known.
		if !published || counters[m.Counter] {
			continue
		}
		has := "have no counters"
		if len(counters) > 0 {
			has = "have " + strings.Join(slices.Sorted(maps.Keys(counters)), ", ")
		}
		found = append(found, Finding{
			Object:  "deviceclassmapping/" + m.Name,
			Message: fmt.Sprintf("The mapping counts by %s of driver %s, whose devices %s.", m.Counter, m.Driver, has),
		})
	}
	return found
}
