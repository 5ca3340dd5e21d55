package migrate

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// quota adds what bounds claims: requests of extended resources do not count them.
func (m *migration) quota(d document) (bool, error) {
	var quota corev1.ResourceQuota
	if err := d.decode(&quota); err != nil {
		return false, err
	}
	var names []string
	for name := range quota.Spec.Hard {
		if resource := strings.TrimPrefix(string(name), corev1.DefaultResourceRequestsPrefix); resource != string(name) && isGPU(resource) {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	changed := false
	for _, name := range names {
		hard := quota.Spec.Hard[corev1.ResourceName(name)]
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
		set(get(d.node, "spec", "hard"), devices, hard.String())
		changed = true
		m.find(d, Moved, "spec.hard["+name+"]", "claims are bounded by "+devices+": "+hard.String(), "")
		if a.profile != "" {
			m.find(d, Look, "spec.hard["+name+"]", "a quota of devices does not tell MIG profiles apart: it counts all of "+a.class,
				"to have one per profile, make DeviceClasses with deviceClass.profiles of Mica's chart")
		}
	}
	return changed, nil
}
