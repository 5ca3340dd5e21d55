package gpu

// Share is the shape of a GPU or partition that several claims share.
type Share struct {
	// Of is the shared device.
	Of Base
	// Sharing is a TimeSlicing or MPS.
	Sharing Sharing
}

// Name is the shared device's with the way of sharing: gpu-<minor>-timeslice.
func (s Share) Name() string { return s.Of.Name() + "-" + s.Sharing.Name() }

// Type is "timeslice" or "mps" for a GPU, "mig-timeslice" or "mig-mps" for a
// partition: a claim that wants a device to itself never gets a share.
func (s Share) Type() string { return s.Of.sharedType(s.Sharing) }

// Physical is the GPU that is shared, or that the partition is cut from.
func (s Share) Physical() GPU { return s.Of.Physical() }

// Form is the shared device's with the way of sharing.
func (s Share) Form() Form {
	f := s.Of.Form()
	f.Sharing, f.Shares, f.Interval = s.Sharing.Name(), s.Sharing.Count(), s.Sharing.TimeSlice()
	return f
}

// UUID is the shared device's.
func (s Share) UUID() string { return s.Of.UUID() }

// MemoryBytes is the shared device's.
func (s Share) MemoryBytes() uint64 { return s.Of.MemoryBytes() }

// Uses is what the shared device consumes, however many claims share it.
func (s Share) Uses(c Counter) uint64 { return s.Of.sharedUses(c) }

// memoryStep is the least memory that a claim can request; requests are rounded up to a multiple.
const memoryStep = 1 << 20

// Describe adds the capacities that the shares divide, and the default of a claim.
func (s Share) Describe(d Description) {
	s.Of.identify(d)
	s.Sharing.describe(d)
	count := uint64(s.Sharing.Count())
	// Whole steps, so that count default shares fit.
	if steps := s.MemoryBytes() / memoryStep; steps >= count {
		d.Divisible(CapacityMemory, Divisible{Total: steps * memoryStep, Min: memoryStep, Step: memoryStep, Default: steps / count * memoryStep, Bytes: true})
	}
}

// Sharing is how claims share a device.
type Sharing interface {
	// Name is the last part of the device's name and type.
	Name() string
	// Count is the number of shares of default size.
	Count() int
	// TimeSlice is how long processes that take turns run, empty if they do not.
	TimeSlice() Interval
	// check refuses what g does not support.
	check(g GPU) error
	describe(d Description)
}

// Limits of sharing. The API server checks them in GPUPolicies, too.
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
// counted by the scheduler, but not enforced.
type TimeSlicing struct {
	// Replicas is how many claims with a share of default size fit.
	Replicas int
	// Interval is how long a process runs before the next one may.
	Interval Interval
}

// Name is "timeslice".
func (TimeSlicing) Name() string { return "timeslice" }

// Count is the number of replicas.
func (t TimeSlicing) Count() int { return t.Replicas }

// TimeSlice is the Interval.
func (t TimeSlicing) TimeSlice() Interval { return t.Interval }

func (t TimeSlicing) describe(d Description) {
	d.Text(attributeInterval, string(t.Interval))
	d.Divisible(CapacityShares, Divisible{Total: uint64(t.Replicas), Min: 1, Step: 1, Default: 1})
}

// MPS lets the processes of all shares run at once, as clients of CUDA's
// Multi-Process Service, which limits the memory and the cores of each.
type MPS struct {
	// Clients is how many claims with a share of default size fit.
	Clients int
}

// Name is "mps".
func (MPS) Name() string { return "mps" }

// Count is the number of clients.
func (m MPS) Count() int { return m.Clients }

// TimeSlice is empty: processes run at once.
func (MPS) TimeSlice() Interval { return "" }

// allCores is all of a device's multiprocessors, in percent.
const allCores = 100

func (m MPS) describe(d Description) {
	d.Divisible(CapacityCores, Divisible{Total: allCores, Min: 1, Step: 1, Default: allCores / uint64(m.Clients)})
}

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
