package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GPUHeadroom keeps devices free for pods that do not exist yet. Every pod takes precedence, and may
// use the free devices; the controller then replaces them.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=gpuheadrooms,scope=Cluster,shortName=ghr
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Class",type=string,JSONPath=`.spec.deviceClassName`
// +kubebuilder:printcolumn:name="Wanted",type=integer,JSONPath=`.status.wanted`
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.free`
// +kubebuilder:printcolumn:name="Demanded",type=integer,JSONPath=`.status.demanded`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GPUHeadroom struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec GPUHeadroomSpec `json:"spec"`
	// +optional
	Status GPUHeadroomStatus `json:"status,omitempty"`
}

// GPUHeadroomList is a list of GPUHeadrooms.
//
// +kubebuilder:object:root=true
type GPUHeadroomList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []GPUHeadroom `json:"items"`
}

// GPUHeadroomSpec describes the devices to keep free.
type GPUHeadroomSpec struct {
	// deviceClassName is the DeviceClass of the devices.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="give the name of a DeviceClass, such as gpu.nvidia.com: names of extended resources, such as nvidia.com/gpu, are none"
	DeviceClassName string `json:"deviceClassName"`
	// selectors are CEL expressions, as in a claim. A device must match all of them.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Selectors []Selector `json:"selectors,omitempty"`
	// devices is the number of devices to keep free while no entry of schedule is in force.
	//
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Devices int32 `json:"devices"`
	// nodeGroups are the GPUNodeGroups on whose nodes the devices are kept. Empty: all groups.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	NodeGroups []string `json:"nodeGroups,omitempty"`
	// schedule replaces devices at certain times. If several entries are in force, the largest number
	// of devices counts.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Schedule []Window `json:"schedule,omitempty"`
}

// Selector is a CEL expression over a device.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=10240
// +kubebuilder:validation:XValidation:rule="self.contains('device.')",message="the expression looks at no device: write it as in a claim's selector, such as device.attributes['gpu.nvidia.com'].type == 'gpu'"
type Selector string

// Window is a recurring period of time.
type Window struct {
	// start is the beginning in cron syntax with five fields: minute, hour, day of month, month, day
	// of week.
	//
	// +required
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^ *[^ =@]+( +[^ =]+){4} *$')",message="give the five fields of cron, such as 55 8 * * 1-5: minute, hour, day of month, month, day of week; the time zone has a field of its own"
	Start string `json:"start"`
	// duration is at most 7 days.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('168h')",message="give a duration from 1m to 168h, such as 10h"
	Duration metav1.Duration `json:"duration"`
	// timeZone is a name in the tz database, such as Asia/Seoul. Empty: UTC.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Z][A-Za-z0-9_+/-]*$') && self != 'Local' || self == ''",message="give a name of the tz database, such as Asia/Seoul"
	TimeZone string `json:"timeZone,omitempty"`
	// devices is the number of devices to keep free in this window.
	//
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Devices int32 `json:"devices"`
}

// GPUHeadroomStatus counts the devices that are kept free.
type GPUHeadroomStatus struct {
	// observedGeneration is the generation of the spec that the status is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// wanted is the number of devices to keep free now.
	//
	// +optional
	Wanted int32 `json:"wanted"`
	// free is the number of wanted devices that are free, after the demand of all pending pods.
	//
	// +optional
	Free int32 `json:"free"`
	// demanded is the number of wanted devices that will come with new nodes.
	//
	// +optional
	Demanded int32 `json:"demanded"`
	// conditions has Ready, which is True if all wanted devices are free.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Reasons of a headroom's conditions.
const (
	ReasonKept         = "Kept"
	ReasonFilling      = "Filling"
	ReasonCannotBeKept = "CannotBeKept"
	ReasonInvalid      = "Invalid"
)
