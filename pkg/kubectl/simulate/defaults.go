package simulate

import (
	"bytes"
	_ "embed"
	"fmt"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/slice"
)

//go:embed defaults.yaml
var chartDefaults []byte

// Defaults are what Mica's chart installs where no value says otherwise: classes of devices, and the
// policy of nodes that no other selects. A driver of another name has none that are known here.
func Defaults(driver string) (*Manifest, error) {
	if driver != slice.DefaultDriver {
		return &Manifest{}, nil
	}
	r, err := NewReader("")
	if err != nil {
		return nil, err
	}
	if err := r.Read("defaults.yaml", bytes.NewReader(chartDefaults)); err != nil {
		return nil, fmt.Errorf("read what the chart installs: %w", err)
	}
	return &r.manifest, nil
}

// Policies are the GPUPolicies of the manifest.
func (m *Manifest) Policies() []*v1alpha1.GPUPolicy {
	var all []*v1alpha1.GPUPolicy
	for i := range m.policies {
		all = append(all, &m.policies[i])
	}
	return all
}

// AddDefaults adds the classes of which the manifest has none of the same name, and the policies if
// it has none.
func (m *Manifest) AddDefaults(defaults *Manifest) {
	m.classes = unless(m.classes, defaults.classes)
	if len(m.policies) == 0 {
		m.policies = defaults.policies
	}
}

// SetPolicies replaces the policies of the files.
func (m *Manifest) SetPolicies(policies []*v1alpha1.GPUPolicy) {
	m.policies = nil
	for _, p := range policies {
		m.policies = append(m.policies, *p)
	}
}
