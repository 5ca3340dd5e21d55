package gpu

// Share is the shape of a GPU or partition that several claims have shares of.
type Share struct {
	// Of is what is shared: a Whole, a Partition or a Static.
	Of Shape
	// Sharing is a TimeSlicing or MPS.
	Sharing Sharing
}

// Name is that of what is shared, and how: gpu-<minor>-timeslice.
func (s Share) Name() string { return s.Of.Name() + "-" + s.Sharing.kind() }

// Type is "timeslice" or "mps" for a GPU, "mig-timeslice" or "mig-mps" for a
// partition: a claim that wants a device to itself never gets a share.
func (s Share) Type() string {
	if _, whole := s.Of.(Whole); whole {
		return s.Sharing.kind()
	}
	return s.Of.Type() + "-" + s.Sharing.kind()
}

// Physical is the GPU that is shared, or that the partition is cut from.
func (s Share) Physical() GPU { return s.Of.Physical() }

// Uses is what the device takes once, however many claims have a share of it: of
// a GPU so much that neither the whole GPU nor anything else of it is left.
func (s Share) Uses(c Counter) uint64 {
	if _, whole := s.Of.(Whole); whole {
		return c.shared
	}
	return s.Of.Uses(c)
}

// MemoryBytes is the memory of what is shared, 0 where it is not known.
func (s Share) MemoryBytes() uint64 {
	switch of := s.Of.(type) {
	case Whole:
		return of.GPU.MemoryBytes
	case Partition:
		return of.Profile.MemoryBytes
	case Static:
		return of.Profile.MemoryBytes
	}
	return 0
}

// Sharing is how claims share a device.
type Sharing interface {
	// kind is the last part of the device's name and type.
	kind() string
	// Count is how many shares of default size there are.
	Count() int
	// check refuses what g does not support.
	check(g GPU) error
}

// Limits of what can be shared, which a GPUPolicy is held to at admission, too.
const (
	// MinShares: with one share, a device is not shared, and the range of a
	// request policy must leave room for a step (ResourceSlice validation).
	MinShares = 2
	// MaxReplicas bounds how many time-slice replicas a device is offered in.
	MaxReplicas = 128
	// MaxClients is how many clients one MPS server of a Volta or later GPU
	// serves (NVIDIA's MPS documentation, "Volta MPS").
	MaxClients = 48
)

// TimeSlicing lets the processes of all shares run in turn. Their memory is
// counted by the scheduler and enforced by nobody.
type TimeSlicing struct {
	// Replicas is how many claims with a share of default size fit.
	Replicas int
	// Interval is how long a process runs before the next one may.
	Interval Interval
}

func (TimeSlicing) kind() string { return "timeslice" }

// Count is the number of replicas.
func (t TimeSlicing) Count() int { return t.Replicas }

// MPS lets the processes of all shares run at once, as clients of CUDA's
// Multi-Process Service, which limits the memory and the cores of each.
type MPS struct {
	// Clients is how many claims with a share of default size fit.
	Clients int
}

func (MPS) kind() string { return "mps" }

// Count is the number of clients.
func (m MPS) Count() int { return m.Clients }

// Interval is the time-slice of a GPU, by the names of NVIDIA's DRA driver.
type Interval string

// Intervals. The default is the NVIDIA driver's own.
const (
	DefaultInterval Interval = "Default"
	ShortInterval   Interval = "Short"
	MediumInterval  Interval = "Medium"
	LongInterval    Interval = "Long"
)

// Intervals are all intervals; the index of each is the number by which
// nvidia-smi's compute-policy knows it.
var Intervals = []Interval{DefaultInterval, ShortInterval, MediumInterval, LongInterval}
