package prepare

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"sigs.k8s.io/json"

	v1beta1 "github.com/mica-gpu/mica/api/resource/v1beta1"
	"github.com/mica-gpu/mica/pkg/gpu"
)

// config is a decoded opaque configuration.
type config interface {
	// appliesTo tells whether the kind is meant for such a device.
	appliesTo(gpu.Shape) bool
	// check refuses what cannot be honoured.
	check() error
}

type gpuConfig struct{ v1beta1.GPUConfig }

func (gpuConfig) appliesTo(shape gpu.Shape) bool {
	_, whole := shape.(gpu.Whole)
	return whole
}

// check accepts time-slicing at the driver's own interval, which is what
// containers that share a claim get anyway.
func (c gpuConfig) check() error {
	sharing := c.Sharing
	switch {
	case sharing == nil:
		return nil
	case sharing.Strategy != v1beta1.TimeSlicingStrategy:
		return fmt.Errorf("sharing.strategy is %q, but a whole GPU supports only %s: remove the field sharing", sharing.Strategy, v1beta1.TimeSlicingStrategy)
	case sharing.MPSConfig != nil:
		return fmt.Errorf("sharing.mpsConfig is set although sharing.strategy is %s: remove it", v1beta1.TimeSlicingStrategy)
	case sharing.TimeSlicingConfig == nil || sharing.TimeSlicingConfig.Interval == nil:
		return nil
	case *sharing.TimeSlicingConfig.Interval != v1beta1.DefaultInterval:
		return fmt.Errorf("sharing.timeSlicingConfig.interval is %q, but a whole GPU supports only %s: remove the field", *sharing.TimeSlicingConfig.Interval, v1beta1.DefaultInterval)
	}
	return nil
}

type migConfig struct{ v1beta1.MIGDeviceConfig }

func (migConfig) appliesTo(shape gpu.Shape) bool { return shape.Type() == gpu.Partition{}.Type() }

// check accepts time-slicing, which containers that share a partition do anyway.
func (c migConfig) check() error {
	switch sharing := c.Sharing; {
	case sharing == nil:
		return nil
	case sharing.Strategy != v1beta1.TimeSlicingStrategy:
		return fmt.Errorf("sharing.strategy is %q, but a MIG partition supports only %s: remove the field sharing", sharing.Strategy, v1beta1.TimeSlicingStrategy)
	case sharing.MPSConfig != nil:
		return fmt.Errorf("sharing.mpsConfig is set although sharing.strategy is %s: remove it", v1beta1.TimeSlicingStrategy)
	}
	return nil
}

type vfioConfig struct{ v1beta1.VFIODeviceConfig }

func (vfioConfig) appliesTo(gpu.Shape) bool { return false }
func (vfioConfig) check() error             { return nil }

// kinds makes an empty configuration to decode into.
var kinds = map[string]func() config{
	v1beta1.GPUConfigKind:        func() config { return &gpuConfig{} },
	v1beta1.MIGDeviceConfigKind:  func() config { return &migConfig{} },
	v1beta1.VFIODeviceConfigKind: func() config { return &vfioConfig{} },
}

// checkConfigs decodes every configuration for our driver, also one that no
// device uses: a typing error must not wait for the day when it matters. A
// configuration that names a request must be of the kind for its devices; one
// for all requests is for those that it fits.
func checkConfigs(configs []resourceapi.DeviceAllocationConfiguration, driver string, assignments []Assignment) error {
	for i, entry := range configs {
		if entry.Opaque == nil || entry.Opaque.Driver != driver {
			continue
		}
		decoded, err := decodeConfig(entry.Opaque.Parameters)
		if err != nil {
			return fmt.Errorf("config[%d] (%s, %s): %w", i, entry.Source, requestsText(entry.Requests, assignments), err)
		}
		for _, assignment := range assignments {
			if !decoded.appliesTo(assignment.Shape) && slices.ContainsFunc(entry.Requests, assignment.names) {
				return fmt.Errorf("config[%d] (%s) is a %s, but request %q was given the device %s of type %s: use the kind for that type",
					i, entry.Source, kindOf(entry.Opaque.Parameters), assignment.Request, assignment.Shape.Name(), assignment.Shape.Type())
			}
		}
		if !slices.ContainsFunc(assignments, func(a Assignment) bool { return decoded.appliesTo(a.Shape) }) {
			continue
		}
		if err := decoded.check(); err != nil {
			return fmt.Errorf("config[%d] (%s, %s): %w", i, entry.Source, requestsText(entry.Requests, assignments), err)
		}
	}
	return nil
}

// names tells whether a configuration's request reference means this
// assignment: the request, or one of its alternatives.
func (a Assignment) names(reference string) bool {
	return reference == a.Request || reference == resourceclaim.BaseRequestRef(a.Request)
}

// requestsText names the requests that a configuration is for. The scheduler
// clears the list of one that names every request of the claim.
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

func decodeConfig(parameters runtime.RawExtension) (config, error) {
	var meta metav1.TypeMeta
	if err := json.UnmarshalCaseSensitivePreserveInts(parameters.Raw, &meta); err != nil {
		return nil, fmt.Errorf("opaque parameters are not a Kubernetes object: %w", err)
	}
	if meta.APIVersion != v1beta1.APIVersion {
		return nil, fmt.Errorf("apiVersion is %q, this driver understands %s: change the manifest or the driver's version", meta.APIVersion, v1beta1.APIVersion)
	}
	empty, known := kinds[meta.Kind]
	if !known {
		return nil, fmt.Errorf("kind is %q, this driver understands %s, %s and %s", meta.Kind, v1beta1.GPUConfigKind, v1beta1.MIGDeviceConfigKind, v1beta1.VFIODeviceConfigKind)
	}
	decoded := empty()
	strict, err := json.UnmarshalStrict(parameters.Raw, decoded)
	if err != nil {
		return nil, fmt.Errorf("%s does not decode: %w", meta.Kind, err)
	}
	if len(strict) > 0 {
		return nil, fmt.Errorf("%s has a mistake: %w: correct or remove the field", meta.Kind, strict[0])
	}
	return decoded, nil
}

func kindOf(parameters runtime.RawExtension) string {
	var meta metav1.TypeMeta
	_ = json.UnmarshalCaseSensitivePreserveInts(parameters.Raw, &meta) // decoded once already
	return meta.Kind
}
