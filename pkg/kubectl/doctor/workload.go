package doctor

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
)

func workloadChecks() []Check {
	return []Check{{
		Name:     "taint-rule-selector",
		Severity: Error,
		Finds:    "A DeviceTaintRule with an empty selector taints every device of the cluster: no claim is allocated, and NoExecute evicts every pod with a device.",
		Fix:      "kubectl delete devicetaintrule RULE",
		needs:    []Kind{KindTaintRules},
		find:     taintRuleSelector,
	}, {
		Name:     "daemonset-claims",
		Severity: Warning,
		Finds:    "A DaemonSet takes devices on each new node. Neither Mica nor Cluster Autoscaler counts them, so a new node may be too small for the pod it was added for.",
		Fix:      "If the DaemonSet only monitors GPUs, set adminAccess: true in request REQUEST of TEMPLATE, and: kubectl label namespace NAMESPACE resource.kubernetes.io/admin-access=true. Otherwise run it as a Deployment.",
		needs:    []Kind{KindDaemonSets, KindGroups, KindTemplates},
		find:     daemonSetClaims,
	}, {
		Name:     "consumable-shares",
		Severity: Error,
		Finds:    "A template requests a part of a whole GPU, as for NVIDIA's driver with consumable shares, but whole GPUs are for one claim at a time. No node has the shares, and for memory each claim gets an entire GPU.",
		Fix:      "Set whole.consumableShares in the nodes' GPUPolicy (consumableShares in the chart), or use the class timeslice.nvidia.com in TEMPLATE.",
		needs:    []Kind{KindSlices, KindTemplates},
		find:     consumableShares,
	}}
}

func taintRuleSelector(f *Facts) []Finding {
	var found []Finding
	for _, rule := range f.TaintRules {
		// A rule without a selector selects nothing (DeviceTaintRuleSpec.deviceSelector).
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

func consumableShares(f *Facts) []Finding {
	var memory resource.Quantity // of the largest whole GPU
	whole := false
	for _, p := range f.pools() {
		for _, d := range p.Devices() {
			if p.ID.Driver != f.Driver || ptr.Deref(d.Attributes[gpu.AttributeType].StringValue, "") != (gpu.Whole{}).Type() {
				continue
			}
			if d.Shared() {
				return nil
			}
			whole = true
			if has := d.Capacity[gpu.CapacityMemory].Value; has.Cmp(memory) > 0 {
				memory = has
			}
		}
	}
	if !whole {
		return nil
	}
	var found []Finding
	for _, r := range f.PartRequests {
		finding := Finding{
			Object:  "resourceclaimtemplate/" + r.Template,
			Message: fmt.Sprintf("Request %s in namespace %s asks for %s shares of a whole GPU, which no node has, so its pods wait.", r.Request, r.Namespace, r.Shares.String()),
			names:   map[string]string{"TEMPLATE": "resourceclaimtemplate/" + r.Template},
		}
		if r.Shares.IsZero() {
			two := r.Memory.DeepCopy()
			if two.Add(r.Memory); two.Cmp(memory) > 0 {
				continue // no GPU has room for two
			}
			finding.Severity = Warning
			finding.Message = fmt.Sprintf("Request %s in namespace %s asks for %s of memory, and each claim gets an entire GPU.", r.Request, r.Namespace, r.Memory.String())
		}
		found = append(found, finding)
	}
	return found
}

func daemonSetClaims(f *Facts) []Finding {
	if len(f.Groups) == 0 {
		return nil
	}
	var found []Finding
	for _, r := range f.DaemonClaims {
		found = append(found, Finding{
			Object:  "daemonset/" + r.Name,
			Message: fmt.Sprintf("By request %s of resourceclaimtemplate/%s in namespace %s, each pod of the DaemonSet takes devices.", r.Request, r.Template, r.Namespace),
			names:   map[string]string{"TEMPLATE": "resourceclaimtemplate/" + r.Template, "NAMESPACE": r.Namespace, "REQUEST": r.Request},
		})
	}
	return found
}

// TakingDevices names the requests without admin access.
func TakingDevices(requests []resourceapi.DeviceRequest) []string {
	var names []string
	for _, request := range requests {
		if exactly := request.Exactly; exactly == nil || exactly.AdminAccess == nil || !*exactly.AdminAccess {
			names = append(names, request.Name)
		}
	}
	return names
}
