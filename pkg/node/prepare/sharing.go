package prepare

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1beta1 "github.com/mica-gpu/mica/api/resource/v1beta1"
	"github.com/mica-gpu/mica/pkg/gpu"
)

// sharing is how the pods of a claim share the devices that the claim has to itself, as an
// opaque configuration asks for it.
type sharing interface {
	// arrange sets up the devices of one configuration, in the order of the allocation.
	// Their daemon, if they need one, has the given ID.
	arrange(devices []*Assignment, daemon string) error
}

// newSharing refuses what no device can honor, and names the field.
func newSharing(strategy v1beta1.SharingStrategy, slicing *v1beta1.TimeSlicingConfig, service *v1beta1.MPSConfig) (sharing, error) {
	switch strategy {
	case v1beta1.TimeSlicingStrategy:
		if service != nil {
			return nil, fmt.Errorf("sharing.mpsConfig is set although sharing.strategy is %s: remove it", strategy)
		}
		return newSlicing(slicing)
	case v1beta1.MPSStrategy:
		if slicing != nil {
			return nil, fmt.Errorf("sharing.timeSlicingConfig is set although sharing.strategy is %s: remove it", strategy)
		}
		return newService(service)
	}
	return nil, fmt.Errorf("sharing.strategy is %q: choose %s or %s", strategy, v1beta1.TimeSlicingStrategy, v1beta1.MPSStrategy)
}

// arrange sets up the sharing of the setting. It refuses shares, which the policy sets up. Claims of a
// consumable GPU may set its interval, as with NVIDIA's driver.
func (s setting) arrange(claim types.UID, devices []*Assignment) error {
	if s.sharing == nil {
		return nil
	}
	for _, device := range devices {
		_, consumable := device.Shape.(gpu.Consumable)
		if _, turns := s.sharing.(slicing); consumable && turns {
			continue
		}
		if device.shared() {
			return fmt.Errorf("sharing is set, but request %q was given a share, %s of type %s: the node's policy says how it is shared, and the claim's capacity requests how much of it there is; remove sharing, or name the requests that it is for",
				device.Request, device.Shape.Name(), device.Shape.Type())
		}
	}
	held := slices.DeleteFunc(slices.Clone(devices), func(a *Assignment) bool { return a.Admin })
	if len(held) == 0 {
		return nil // another configuration counts for all of them
	}
	return s.sharing.arrange(held, fmt.Sprintf("claim-%s-%d", claim, s.index))
}

// slicing sets how long a process runs before the next one may.
type slicing struct{ interval gpu.Interval }

func newSlicing(config *v1beta1.TimeSlicingConfig) (sharing, error) {
	if config == nil || config.Interval == nil {
		return slicing{gpu.DefaultInterval}, nil
	}
	interval := gpu.Interval(*config.Interval)
	if !slices.Contains(gpu.Intervals, interval) {
		return nil, fmt.Errorf("sharing.timeSlicingConfig.interval is %q: choose one of %q", interval, gpu.Intervals)
	}
	return slicing{interval}, nil
}

func (s slicing) arrange(devices []*Assignment, _ string) error {
	if s.interval == gpu.DefaultInterval {
		return nil
	}
	for _, device := range devices {
		if g := device.Shape.Physical(); g.BeforeVolta() {
			return fmt.Errorf("sharing.timeSlicingConfig.interval is %s, but request %q was given %s, a %s (compute capability %s), which has none that could be set: use %s",
				s.interval, device.Request, device.Shape.Name(), g.ProductName, g.ComputeCapability, gpu.DefaultInterval)
		}
		device.Interval = s.interval
	}
	return nil
}

const (
	fieldPercentage = "sharing.mpsConfig.defaultActiveThreadPercentage"
	fieldMemory     = "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit"
	fieldPerDevice  = "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit"
)

func perDeviceField(key string) string { return fmt.Sprintf("%s[%s]", fieldPerDevice, key) }

// leastMemory is the unit of limits.
const leastMemory = 1 << 20

// service makes processes clients of one MPS daemon. A limit of 0 is none.
type service struct {
	cores  int
	memory uint64
	// perDevice overrides memory, by position or UUID.
	perDevice map[string]uint64
	multiUser bool
}

func newService(config *v1beta1.MPSConfig) (sharing, error) {
	if config == nil {
		return service{}, nil
	}
	s := service{
		cores:     ptr.Deref(config.DefaultActiveThreadPercentage, 0),
		perDevice: map[string]uint64{},
		multiUser: ptr.Deref(config.MultiUser, false),
	}
	if s.cores < 0 || s.cores > 100 {
		return nil, fmt.Errorf("%s is %d: choose 0, which is no limit, to 100", fieldPercentage, s.cores)
	}
	var err error
	if limit := config.DefaultPinnedDeviceMemoryLimit; limit != nil {
		if s.memory, err = memoryLimit(fieldMemory, *limit); err != nil {
			return nil, err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(config.DefaultPerDevicePinnedMemoryLimit)) {
		limit := config.DefaultPerDevicePinnedMemoryLimit[key]
		if s.perDevice[key], err = memoryLimit(perDeviceField(key), limit); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func memoryLimit(field string, limit resource.Quantity) (uint64, error) {
	if limit.Value() < leastMemory {
		return 0, fmt.Errorf("%s is %s: choose at least 1Mi", field, limit.String())
	}
	return uint64(limit.Value()) / leastMemory * leastMemory, nil
}

func (s service) arrange(devices []*Assignment, daemon string) error {
	limits, err := s.limits(devices)
	if err != nil {
		return err
	}
	for i, device := range devices {
		if g := device.Shape.Physical(); g.BeforeVolta() {
			return fmt.Errorf("sharing.strategy is %s, but request %q was given %s, a %s (compute capability %s), which cannot limit the clients of MPS: use %s",
				v1beta1.MPSStrategy, device.Request, device.Shape.Name(), g.ProductName, g.ComputeCapability, v1beta1.TimeSlicingStrategy)
		}
		if total := device.Shape.MemoryBytes(); total > 0 && limits[i].bytes > total {
			return fmt.Errorf("%s is %s, which is more than the %s of %s, which request %q was given: lower it",
				limits[i].field, bytesText(limits[i].bytes), bytesText(total), device.Shape.Name(), device.Request)
		}
		device.Client = client{Daemon: daemon, MemoryBytes: limits[i].bytes, Cores: s.cores, MultiUser: s.multiUser}
	}
	return nil
}

// limit is a memory limit, with the field that sets it.
type limit struct {
	field string
	bytes uint64
}

// limits are the memory limits by device.
func (s service) limits(devices []*Assignment) ([]limit, error) {
	limits := make([]limit, len(devices))
	for i := range limits {
		limits[i] = limit{fieldMemory, s.memory}
	}
	set := map[int]string{}
	for _, key := range slices.Sorted(maps.Keys(s.perDevice)) {
		i, err := find(devices, key)
		if err != nil {
			return nil, fmt.Errorf("%s has the key %q, %w", fieldPerDevice, key, err)
		}
		if other, twice := set[i]; twice {
			return nil, fmt.Errorf("%s has two limits for %s, %q and %q: remove one", fieldPerDevice, devices[i].Shape.Name(), other, key)
		}
		set[i] = key
		limits[i] = limit{perDeviceField(key), s.perDevice[key]}
	}
	return limits, nil
}

// find finds a device by its position or UUID.
func find(devices []*Assignment, key string) (int, error) {
	if i, err := strconv.Atoi(key); err == nil && i >= 0 && i < len(devices) {
		return i, nil
	}
	if i := slices.IndexFunc(devices, func(a *Assignment) bool { return a.Shape.UUID() == key }); i >= 0 && key != "" {
		return i, nil
	}
	if len(devices) == 1 {
		return 0, errors.New("but the configuration is for one device: use the key 0, or the UUID of a device that exists already")
	}
	return 0, fmt.Errorf("but the configuration is for %d devices: use a key of 0 to %d, or the UUID of a device that exists already", len(devices), len(devices)-1)
}

func bytesText(n uint64) string {
	return resource.NewQuantity(int64(n), resource.BinarySI).String()
}
