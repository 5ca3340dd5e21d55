// Package v1beta1 holds the opaque configuration that a claim or a device
// class may carry for this driver. Group, version, kinds and fields are those
// of NVIDIA's DRA driver, so that its users' manifests need no change. The
// package holds types only; what is accepted is decided where claims are
// prepared.
package v1beta1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// APIVersion is the apiVersion of every kind in this package.
const APIVersion = "resource.nvidia.com/v1beta1"

// Kinds of configuration.
const (
	GPUConfigKind        = "GpuConfig"
	MIGDeviceConfigKind  = "MigDeviceConfig"
	VFIODeviceConfigKind = "VfioDeviceConfig"
)

// GPUConfig configures whole GPUs.
type GPUConfig struct {
	metav1.TypeMeta `json:",inline"`
	// Sharing is how the containers that use the claim share its GPUs.
	Sharing *Sharing `json:"sharing,omitempty"`
}

// MIGDeviceConfig configures MIG partitions.
type MIGDeviceConfig struct {
	metav1.TypeMeta `json:",inline"`
	// Sharing is how the containers that use the claim share its partitions.
	Sharing *MIGDeviceSharing `json:"sharing,omitempty"`
}

// VFIODeviceConfig configures GPUs that are passed through to a virtual machine.
type VFIODeviceConfig struct {
	metav1.TypeMeta `json:",inline"`
	// IOMMU selects the backend.
	IOMMU *IOMMUConfig `json:"iommu,omitempty"`
}

// SharingStrategy names a way of sharing.
type SharingStrategy string

// Strategies of sharing.
const (
	TimeSlicingStrategy SharingStrategy = "TimeSlicing"
	MPSStrategy         SharingStrategy = "MPS"
)

// Sharing selects a strategy and its settings.
type Sharing struct {
	Strategy          SharingStrategy    `json:"strategy"`
	TimeSlicingConfig *TimeSlicingConfig `json:"timeSlicingConfig,omitempty"`
	MPSConfig         *MPSConfig         `json:"mpsConfig,omitempty"`
}

// MIGDeviceSharing selects a strategy for partitions, whose time-slice has no interval
// that could be set.
type MIGDeviceSharing struct {
	Strategy  SharingStrategy `json:"strategy"`
	MPSConfig *MPSConfig      `json:"mpsConfig,omitempty"`
}

// TimeSlicingConfig sets how long a process runs before the next one may.
type TimeSlicingConfig struct {
	// Interval is Default, Short, Medium or Long.
	Interval *string `json:"interval,omitempty"`
}

// MPSConfig limits the clients of CUDA's Multi-Process Service.
type MPSConfig struct {
	// DefaultActiveThreadPercentage is 0 to 100 percent of the multiprocessors; 0 is
	// no limit.
	DefaultActiveThreadPercentage *int `json:"defaultActiveThreadPercentage,omitempty"`
	// DefaultPinnedDeviceMemoryLimit is in bytes, for each client on each device, and
	// at least 1Mi.
	DefaultPinnedDeviceMemoryLimit *resource.Quantity `json:"defaultPinnedDeviceMemoryLimit,omitempty"`
	// DefaultPerDevicePinnedMemoryLimit overrides it, by the device's position among
	// those that the configuration is for, or by its UUID.
	DefaultPerDevicePinnedMemoryLimit map[string]resource.Quantity `json:"defaultPerDevicePinnedMemoryLimit,omitempty"`
	// MultiUser lets processes of several users be clients at the same time.
	MultiUser *bool `json:"multiUser,omitempty"`
}

// IOMMUConfig selects the IOMMU backend of passthrough.
type IOMMUConfig struct {
	// BackendPolicy is LegacyOnly or PreferIommuFD.
	BackendPolicy string `json:"backendPolicy,omitempty"`
	// EnableAPIDevice adds the backend's control device to the container.
	EnableAPIDevice bool `json:"enableAPIDevice,omitempty"`
}
