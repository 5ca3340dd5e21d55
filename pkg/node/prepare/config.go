package prepare

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/json"

	v1beta1 "github.com/mica-gpu/mica/api/resource/v1beta1"
	"github.com/mica-gpu/mica/pkg/gpu"
)

// config is a decoded opaque configuration.
type config interface {
	// appliesTo reports whether the kind is meant for such a device.
	appliesTo(gpu.Form) bool
}

// sharingConfig is a config that can say how the claim's pods share its devices.
type sharingConfig interface {
	// sharing is nil if the config does not say. What no device can honor is an error.
	sharing() (sharing, error)
}

type gpuConfig struct{ v1beta1.GPUConfig }

func (gpuConfig) appliesTo(f gpu.Form) bool { return f.Base == gpu.BaseWhole }

func (c gpuConfig) sharing() (sharing, error) {
	if c.Sharing == nil {
		return nil, nil //nolint:nilnil // no sharing is an answer
	}
	return newSharing(c.Sharing.Strategy, c.Sharing.TimeSlicingConfig, c.Sharing.MPSConfig)
}

type migConfig struct{ v1beta1.MIGDeviceConfig }

func (migConfig) appliesTo(f gpu.Form) bool { return !f.Entire() }

func (c migConfig) sharing() (sharing, error) {
	if c.Sharing == nil {
		return nil, nil //nolint:nilnil // no sharing is an answer
	}
	return newSharing(c.Sharing.Strategy, nil, c.Sharing.MPSConfig)
}

type vfioConfig struct{ v1beta1.VFIODeviceConfig }

func (vfioConfig) appliesTo(gpu.Form) bool { return false }

// kinds makes an empty configuration to decode into.
var kinds = map[string]func() config{
	v1beta1.GPUConfigKind:        func() config { return &gpuConfig{} },
	v1beta1.MIGDeviceConfigKind:  func() config { return &migConfig{} },
	v1beta1.VFIODeviceConfigKind: func() config { return &vfioConfig{} },
}

// setting is a configuration of an allocation, and the sharing that it asks for.
type setting struct {
	config
	kind    string
	sharing sharing
	entry   resourceapi.DeviceAllocationConfiguration
	index   int
}

// wrong names the configuration that is at fault.
func (s setting) wrong(assignments []Assignment, err error) error {
	return fmt.Errorf("config[%d] (%s, %s): %w", s.index, s.entry.Source, requestsText(s.entry.Requests, assignments), err)
}

// isFor reports whether the configuration is for an assignment. One for all requests is
// for those that it fits.
func (s setting) isFor(a Assignment) bool {
	return s.appliesTo(a.Shape.Form()) && (len(s.entry.Requests) == 0 || slices.ContainsFunc(s.entry.Requests, a.isOf))
}

// configure applies the claim's configurations to the assignments. If several are for one
// device, one counts: the last one of the claim, or else the last one of its classes.
func configure(claim types.UID, configs []resourceapi.DeviceAllocationConfiguration, driver string, assignments []Assignment) error {
	settings, err := decodeConfigs(configs, driver, assignments)
	if err != nil {
		return err
	}
	slices.SortStableFunc(settings, func(a, b setting) int { return rank(a) - rank(b) })
	devices := make([][]*Assignment, len(settings))
	for i := range assignments {
		for j, s := range slices.Backward(settings) {
			if s.isFor(assignments[i]) {
				devices[j] = append(devices[j], &assignments[i])
				break
			}
		}
	}
	for i, s := range settings {
		if err := s.arrange(claim, devices[i]); err != nil {
			return s.wrong(assignments, err)
		}
	}
	return nil
}

// rank puts the class's configurations before the claim's.
func rank(s setting) int {
	if s.entry.Source == resourceapi.AllocationConfigSourceClass {
		return 0
	}
	return 1
}

// decodeConfigs decodes every configuration for this driver, also one that no device uses,
// so that a typing error shows at once. A configuration that names a request must be of
// the kind for its devices.
func decodeConfigs(configs []resourceapi.DeviceAllocationConfiguration, driver string, assignments []Assignment) ([]setting, error) {
	var settings []setting
	for i, entry := range configs {
		if entry.Opaque == nil || entry.Opaque.Driver != driver {
			continue
		}
		s := setting{entry: entry, index: i}
		var err error
		if s.config, s.kind, err = decodeConfig(entry.Opaque.Parameters); err != nil {
			return nil, s.wrong(assignments, err)
		}
		for _, assignment := range assignments {
			if !s.appliesTo(assignment.Shape.Form()) && slices.ContainsFunc(entry.Requests, assignment.isOf) {
				return nil, fmt.Errorf("config[%d] (%s) is a %s, but request %q was given the device %s of type %s: use the kind for that type",
					i, entry.Source, s.kind, assignment.Request, assignment.Shape.Name(), assignment.Shape.Type())
			}
		}
		if !slices.ContainsFunc(assignments, func(a Assignment) bool { return s.appliesTo(a.Shape.Form()) }) {
			continue
		}
		if shared, can := s.config.(sharingConfig); can {
			if s.sharing, err = shared.sharing(); err != nil {
				return nil, s.wrong(assignments, err)
			}
		}
		settings = append(settings, s)
	}
	return settings, nil
}

// requestsText names the requests that a configuration is for. The scheduler clears the
// list of a configuration that names every request of the claim.
func requestsText(requests []string, assignments []Assignment) string {
	if len(requests) > 0 {
		return fmt.Sprintf("requests %q", requests)
	}
	all := make([]string, 0, len(assignments))
	for _, assignment := range assignments {
		all = append(all, assignment.Request)
	}
	return fmt.Sprintf("all requests %q", slices.Compact(all))
}

func decodeConfig(parameters runtime.RawExtension) (decoded config, kind string, err error) {
	var meta metav1.TypeMeta
	if err := json.UnmarshalCaseSensitivePreserveInts(parameters.Raw, &meta); err != nil {
		return nil, "", fmt.Errorf("opaque parameters are not a Kubernetes object: %w", err)
	}
	if meta.APIVersion != v1beta1.APIVersion {
		return nil, "", fmt.Errorf("apiVersion is %q, this driver understands %s: change the manifest or the driver's version", meta.APIVersion, v1beta1.APIVersion)
	}
	empty, known := kinds[meta.Kind]
	if !known {
		all := slices.Sorted(maps.Keys(kinds))
		last := len(all) - 1
		return nil, "", fmt.Errorf("kind is %q, this driver understands %s and %s: change the manifest or the driver's version",
			meta.Kind, strings.Join(all[:last], ", "), all[last])
	}
	decoded = empty()
	strict, err := json.UnmarshalStrict(parameters.Raw, decoded)
	if err != nil {
		return nil, "", fmt.Errorf("%s does not decode: %w", meta.Kind, err)
	}
	if len(strict) > 0 {
		return nil, "", fmt.Errorf("%s has a mistake: %w: correct or remove the field", meta.Kind, strict[0])
	}
	return decoded, meta.Kind, nil
}
