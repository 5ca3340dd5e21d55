package journal

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// State is how far the preparation of a claim has come.
type State string

const (
	// Intent: steps with side effects may have begun; a restart undoes them.
	Intent State = "intent"
	// Prepared: everything is done, and kubelet may know it.
	Prepared State = "prepared"
	// Damaged is the state in Tallies of a file that cannot be used. No record has it.
	Damaged State = "damaged"
)

// Record is what the plugin remembers of one claim.
type Record struct {
	ClaimUID  string   `json:"claimUID"`
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	PodClaim  string   `json:"podClaim,omitempty"` // the pod's name for a claim that was made from a template
	BootID    string   `json:"bootID"`             // /proc/sys/kernel/random/boot_id when the record was written
	State     State    `json:"state"`
	Devices   []Device `json:"devices"` // in the order of the allocation's results
}

// Device is one allocation result as it was prepared.
type Device struct {
	Request string `json:"request"` // request, or request/subrequest
	Pool    string `json:"pool"`
	Device  string `json:"device"` // name in the pool, such as gpu-0
	// UUID is that of the GPU which had this name at the time.
	UUID         string   `json:"uuid"`
	AdminAccess  bool     `json:"adminAccess,omitempty"`
	ShareID      string   `json:"shareID,omitempty"` // only if the device allows multiple allocations
	CDIDeviceIDs []string `json:"cdiDeviceIDs"`
	// Form is the shape of the device, and Type its published type.
	Form gpu.Form `json:"form"`
	Type string   `json:"type"`
	// PartUUID is the UUID of a MIG device. It is empty for an entire GPU, for a partition
	// before it is made, and for one that is gone. It is no identity: the driver derives it
	// from the place, so another partition there has the same one.
	PartUUID string `json:"partUUID,omitempty"`
	// Part is the claim's part of the device's time, 0 to 1. It is 0 if the number of claims that share
	// the device is not limited: then they have equal parts.
	Part float64 `json:"part,omitempty"`
	// Steps are what the preparation does, in this order, and what has to be undone.
	// A device with admin access has none.
	Steps []Step `json:"steps,omitempty"`

	// Newer marks a device of a newer version's record (Corrupt.Record). It has only the
	// fields that every version keeps, and is never written.
	Newer bool `json:"-"`
}

// Step is something that is done to prepare a device. Package prepare owns the names of
// steps and the types of their data.
type Step struct {
	Name string          `json:"name"`
	Data json.RawMessage `json:"data,omitempty"`
}

func (s Step) String() string { return s.Name + string(s.Data) }

// On reports whether the device is, or may be, on that GPU.
func (d Device) On(gpu string) bool { return d.UUID == gpu || d.Newer && d.UUID == "" }

// DeviceUUID is what NVIDIA's tools and CUDA call the device: a MIG device's UUID, or the GPU's.
func (d Device) DeviceUUID() string { return cmp.Or(d.PartUUID, d.UUID) }

// Exists reports whether the device is there: a partition may not be made yet, or be gone.
func (d Device) Exists() bool { return d.Form.Entire() || d.PartUUID != "" }

// Clone returns a copy that shares nothing with r.
func (r Record) Clone() Record {
	r.Devices = slices.Clone(r.Devices)
	for i := range r.Devices {
		r.Devices[i].CDIDeviceIDs = slices.Clone(r.Devices[i].CDIDeviceIDs)
		r.Devices[i].Steps = slices.Clone(r.Devices[i].Steps)
	}
	return r
}
