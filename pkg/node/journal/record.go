package journal

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// State says how far the preparation of a claim has come.
type State string

const (
	// Intent: steps with side effects may have been started; a restart undoes them.
	Intent State = "intent"
	// Prepared: everything is done, and kubelet has been or may be told so.
	Prepared State = "prepared"
)

// Damaged is the state in Tallies of a file that is no record that can be used. No record has it.
const Damaged State = "damaged"

// Record is what the plugin remembers of one claim.
//
// Fields of the same schema version that this build does not know, met when the
// record was read, travel with the value and are written back: a downgrade in
// the middle of a rolling update does not erase what the newer build wrote.
type Record struct {
	ClaimUID  string
	Namespace string
	Name      string
	PodClaim  string // how the pod calls a claim that was made for it from a template
	BootID    string // /proc/sys/kernel/random/boot_id at the time of writing
	State     State
	Devices   []Device // in the order of the allocation's results

	unknown map[string]json.RawMessage
}

// Device is one allocation result as it was prepared.
type Device struct {
	Request      string // the request, or request/subrequest, as the allocation names it
	Pool         string
	Device       string // name in the pool, such as gpu-0
	UUID         string // of the GPU that stood behind the name at the time
	AdminAccess  bool
	ShareID      string // empty unless the device allows multiple allocations
	CDIDeviceIDs []string
	// Shape is the Base of the device's gpu.Form, and Type what was published as its type.
	Shape, Type string
	// Partition is zero for an entire GPU.
	Partition Partition
	// Shares is how many shares of default size the device is offered in; 0 for a
	// device that the claim has to itself. Sharing is how it is shared.
	Shares  int
	Sharing string
	// Interval is the time-slice of the GPU that the claim needs, by its name in a
	// GpuConfig; empty for the NVIDIA driver's own, which nobody has to set.
	Interval string
	// MPS is zero where the claim's processes are no clients of MPS.
	MPS MPS
	// Steps are what the preparation does, in this order, and what has to be undone. Of
	// a device that is only looked at there are none.
	Steps []Step

	// Newer is true for a device of a newer version's record (Corrupt.Record), which is
	// never written. Of its fields, only those have a value that every version keeps.
	Newer bool

	unknown map[string]json.RawMessage
}

// On reports whether the device is, or may be, on that GPU.
func (d Device) On(gpu string) bool { return d.UUID == gpu || d.Newer && d.UUID == "" }

// Step is the name of something that is done to prepare a device.
type Step string

// Steps. Their parameters are in the device.
const (
	DisableMIG     Step = "disable-mig"
	MakePartition  Step = "make-partition"
	SetTimeSlice   Step = "set-time-slice"
	SetComputeMode Step = "set-compute-mode"
	RunDaemon      Step = "run-daemon"
)

// Form is what the device is a shape of, for whatever GPU has its UUID.
func (d Device) Form() gpu.Form {
	form := gpu.Form{
		Base: d.Shape, Sharing: d.Sharing, Shares: d.Shares,
		Placement: gpu.Placement{
			ProfileID: d.Partition.ProfileID, Start: d.Partition.Start, Size: d.Partition.Size,
			InstanceID: d.Partition.InstanceID, ComputeID: d.Partition.ComputeID,
		},
	}
	if d.Shares > 0 && !form.Served() {
		form.Interval = cmp.Or(gpu.Interval(d.Interval), gpu.DefaultInterval)
	}
	return form
}

// DeviceUUID is what NVIDIA's tools and CUDA call the device: a MIG device's UUID, or the
// GPU's.
func (d Device) DeviceUUID() string { return cmp.Or(d.Partition.UUID, d.UUID) }

// Served tells that the claim's processes are clients of an MPS daemon.
func (d Device) Served() bool { return d.MPS.Daemon != "" }

// MPS is the control daemon whose clients a claim's processes are, if any.
type MPS struct {
	// Daemon is its ID. Shares of one device, and the devices of one
	// configuration in a claim, have one daemon.
	Daemon string
	// ComputeMode is the GPU's, by its name in NVML, from before MPS needed it
	// for itself. It is empty for a partition, which has none.
	ComputeMode string
	// MemoryBytes and Cores (percent) limit each of the claim's processes; 0 for no
	// limit. Of a share they are the claim's own; for devices that the claim has to
	// itself, the daemon applies them, so they have the same Cores.
	MemoryBytes uint64
	Cores       int
	// MultiUser: processes of several users may be clients at the same time.
	MultiUser bool

	unknown map[string]json.RawMessage
}

// Partition is the MIG partition that a claim has of a GPU, if any. What is intended is
// known before it is made: everything that is found there later, while nothing
// says otherwise, is what the intent was about.
type Partition struct {
	ProfileID   int // of the GPU instance, as NVML counts them on that board
	Start, Size int // memory slices
	// Foreign: somebody else has made it. It is handed out and never destroyed.
	// Without a UUID, nothing of ours is in its place, or not any more.
	Foreign bool
	// Gone: it was made here, and was seen to be destroyed while its claim had it. Whatever is
	// in its place later is somebody else's, also with the same UUID.
	Gone bool
	// UUID is the MIG device's. It is empty until the partition is made; until
	// then the IDs, which NVML uses again, mean nothing. It is no identity: the driver
	// derives it from the place, so that another partition there has it, too.
	UUID                  string
	InstanceID, ComputeID int

	unknown map[string]json.RawMessage
}

// Clone returns a copy that shares nothing with r.
func (r Record) Clone() Record {
	r.unknown = maps.Clone(r.unknown)
	r.Devices = slices.Clone(r.Devices)
	for i := range r.Devices {
		r.Devices[i].CDIDeviceIDs = slices.Clone(r.Devices[i].CDIDeviceIDs)
		r.Devices[i].Steps = slices.Clone(r.Devices[i].Steps)
		r.Devices[i].unknown = maps.Clone(r.Devices[i].unknown)
		r.Devices[i].Partition.unknown = maps.Clone(r.Devices[i].Partition.unknown)
		r.Devices[i].MPS.unknown = maps.Clone(r.Devices[i].MPS.unknown)
	}
	return r
}

// MarshalJSON leaves out empty fields and appends the unknown ones.
func (r Record) MarshalJSON() ([]byte, error) { return marshalObject(r.fields(), r.unknown) }

// UnmarshalJSON matches field names exactly, unlike encoding/json, so that an
// unknown field that differs in case is not taken for one of ours.
func (r *Record) UnmarshalJSON(data []byte) (err error) {
	*r = Record{}
	r.unknown, err = unmarshalObject(data, r.fields())
	return err
}

// MarshalJSON leaves out empty fields and appends the unknown ones.
func (d Device) MarshalJSON() ([]byte, error) { return marshalObject(d.fields(), d.unknown) }

// UnmarshalJSON matches field names exactly, as Record's does.
func (d *Device) UnmarshalJSON(data []byte) (err error) {
	*d = Device{}
	d.unknown, err = unmarshalObject(data, d.fields())
	return err
}

// MarshalJSON leaves out empty fields and appends the unknown ones.
func (p Partition) MarshalJSON() ([]byte, error) { return marshalObject(p.fields(), p.unknown) }

// UnmarshalJSON matches field names exactly, as Record's does.
func (p *Partition) UnmarshalJSON(data []byte) (err error) {
	*p = Partition{}
	p.unknown, err = unmarshalObject(data, p.fields())
	return err
}

// MarshalJSON leaves out empty fields and appends the unknown ones.
func (m MPS) MarshalJSON() ([]byte, error) { return marshalObject(m.fields(), m.unknown) }

// UnmarshalJSON matches field names exactly, as Record's does.
func (m *MPS) UnmarshalJSON(data []byte) (err error) {
	*m = MPS{}
	m.unknown, err = unmarshalObject(data, m.fields())
	return err
}

// field ties a name in the file to the place of its value.
type field struct {
	name    string
	pointer any
}

func (r *Record) fields() []field {
	return []field{
		{"claimUID", &r.ClaimUID},
		{"namespace", &r.Namespace},
		{"name", &r.Name},
		{"podClaim", &r.PodClaim},
		{"bootID", &r.BootID},
		{"state", &r.State},
		{"devices", &r.Devices},
	}
}

func (d *Device) fields() []field {
	return []field{
		{"request", &d.Request},
		{"pool", &d.Pool},
		{"device", &d.Device},
		{"uuid", &d.UUID},
		{"adminAccess", &d.AdminAccess},
		{"shareID", &d.ShareID},
		{"cdiDeviceIDs", &d.CDIDeviceIDs},
		{"shape", &d.Shape},
		{"type", &d.Type},
		{"partition", &d.Partition},
		{"shares", &d.Shares},
		{"sharing", &d.Sharing},
		{"interval", &d.Interval},
		{"mps", &d.MPS},
		{"steps", &d.Steps},
	}
}

func (m *MPS) fields() []field {
	return []field{
		{"daemon", &m.Daemon},
		{"computeMode", &m.ComputeMode},
		{"memoryBytes", &m.MemoryBytes},
		{"cores", &m.Cores},
		{"multiUser", &m.MultiUser},
	}
}

func (p *Partition) fields() []field {
	return []field{
		{"profileID", &p.ProfileID},
		{"start", &p.Start},
		{"size", &p.Size},
		{"foreign", &p.Foreign},
		{"gone", &p.Gone},
		{"uuid", &p.UUID},
		{"instanceID", &p.InstanceID},
		{"computeID", &p.ComputeID},
	}
}

// marshalObject writes known fields in their order and unknown ones by name, so
// that equal records are equal files.
func marshalObject(known []field, unknown map[string]json.RawMessage) ([]byte, error) {
	var out bytes.Buffer
	out.WriteByte('{')
	write := func(name string, value any) error {
		encoded, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("field %q: %w", name, err)
		}
		key, err := json.Marshal(name)
		if err != nil {
			return err
		}
		if out.Len() > 1 {
			out.WriteByte(',')
		}
		out.Write(key)
		out.WriteByte(':')
		out.Write(encoded)
		return nil
	}
	for _, f := range known {
		if value := reflect.ValueOf(f.pointer).Elem(); !value.IsZero() {
			if err := write(f.name, f.pointer); err != nil {
				return nil, err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(unknown)) {
		if err := write(name, unknown[name]); err != nil {
			return nil, err
		}
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// unmarshalObject fills the known fields and returns the others, nil if none.
func unmarshalObject(data []byte, known []field) (map[string]json.RawMessage, error) {
	var rest map[string]json.RawMessage
	if err := json.Unmarshal(data, &rest); err != nil {
		return nil, err
	}
	if rest == nil {
		return nil, fmt.Errorf("found null instead of an object")
	}
	for _, f := range known {
		raw, present := rest[f.name]
		if !present {
			continue
		}
		if err := json.Unmarshal(raw, f.pointer); err != nil {
			return nil, fmt.Errorf("field %q: %w", f.name, err)
		}
		delete(rest, f.name)
	}
	if len(rest) == 0 {
		return nil, nil
	}
	return rest, nil
}
