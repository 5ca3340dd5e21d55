package migrate

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// quota adds what bounds claims: requests of extended resources do not count them.
func (m *migration) quota(d document) (bool, error) {
	var quota corev1.ResourceQuota
	if err := d.decode(&quota); err != nil {
		return false, err
	}
	var names []string
	for name := range quota.Spec.Hard {
		if counted := strings.TrimPrefix(string(name), corev1.DefaultResourceRequestsPrefix); counted != string(name) && isGPU(counted) {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	changed := false
	// A class has all profiles: what there was for each of them adds up.
	bounds := map[string]resource.Quantity{}
	for _, name := range names {
		a, err := m.meaning(nil).ask(strings.TrimPrefix(name, corev1.DefaultResourceRequestsPrefix), 1)
		if err != nil {
			m.find(d, Blocked, "spec.hard["+name+"]", err.Error(), "")
			continue
		}
		devices := a.class + corev1.ResourceClaimsPerClass
		if _, has := quota.Spec.Hard[corev1.ResourceName(devices)]; has {
			continue
		}
		if !changed {
			expand(d.node)
		}
		bound := bounds[devices]
		bound.Add(quota.Spec.Hard[corev1.ResourceName(name)])
		bounds[devices] = bound
		set(get(d.node, "spec", "hard"), devices, bound.String())
		changed = true
		m.find(d, Moved, "spec.hard["+name+"]", "claims are bounded by "+devices+": "+bound.String(), "")
		if a.profile != "" {
			m.find(d, Look, "spec.hard["+name+"]", "a quota of devices does not tell MIG profiles apart: it counts all of "+a.class,
				"to have one per profile, make DeviceClasses with deviceClass.profiles of Mica's chart")
		}
	}
	return changed, nil
}
