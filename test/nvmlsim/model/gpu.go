package model

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/catalog"
)

// gpu is one GPU of the machine. The first group of fields never changes;
// Machine.mu guards the last.
type gpu struct {
	spec         GPU
	index        int
	address      PCIAddress
	board        catalog.Board
	brand        nvml.BrandType
	architecture nvml.DeviceArchitecture
	links        []link

	// changing holds a token while a call changes the instances or the MIG mode.
	changing chan struct{}

	presence    Presence
	persistence nvml.EnableState
	computeMode nvml.ComputeMode
	timeslice   Timeslice
	migMode     migMode
	// retrained is when the links are back after MIG was disabled, retrain how long that takes.
	retrained time.Time
	retrain   time.Duration
	instances instances
	// condition is what the GPU says of its health.
	condition Condition
	// recovering are the XIDs whose recovery action has yet to come.
	recovering []*uint64
	// work is that of the GPU as a whole.
	work    work
	sensors sensors
	// occupied is set by Occupy for the GPU as a whole; contexts
	// counts those of processes that the machine knows.
	occupied bool
	contexts int
}

func (g *gpu) inUse() bool { return g.occupied || g.contexts > 0 }

// link is one NVLink port. A port that no switch is wired to has no remote.
type link struct {
	remote *NVSwitch
}

var brands = map[string]nvml.BrandType{
	"Tesla":      nvml.BRAND_TESLA,
	"Nvidia":     nvml.BRAND_NVIDIA,
	"NvidiaRTX":  nvml.BRAND_NVIDIA_RTX,
	"QuadroRTX":  nvml.BRAND_QUADRO_RTX,
	"GeForceRTX": nvml.BRAND_GEFORCE_RTX,
}

var architectures = map[string]nvml.DeviceArchitecture{
	"Pascal":       nvml.DEVICE_ARCH_PASCAL,
	"Turing":       nvml.DEVICE_ARCH_TURING,
	"Ampere":       nvml.DEVICE_ARCH_AMPERE,
	"Ada Lovelace": nvml.DEVICE_ARCH_ADA,
	"Hopper":       nvml.DEVICE_ARCH_HOPPER,
	"Blackwell":    nvml.DEVICE_ARCH_BLACKWELL,
}

func newGPU(f File, index int) (*gpu, error) {
	spec := f.GPUs[index]
	board, found := catalog.BoardByName(spec.Board)
	if !found {
		return nil, fmt.Errorf("the catalogue does not list board %q of GPU %d", spec.Board, index)
	}
	brand, brandKnown := brands[board.Brand]
	architecture, architectureKnown := architectures[board.Architecture]
	if !brandKnown || !architectureKnown {
		return nil, fmt.Errorf("board %q of GPU %d has brand %q and architecture %q; the simulator does not know NVML's number for one of them", spec.Board, index, board.Brand, board.Architecture)
	}
	address, err := ParsePCIAddress(spec.PCIBusID)
	if err != nil {
		return nil, fmt.Errorf("GPU %d: %w", index, err)
	}
	if spec.UUID == "" {
		spec.UUID = deriveUUID(f.Name, index)
	}
	g := &gpu{
		spec:         spec,
		index:        index,
		address:      address,
		board:        board,
		brand:        brand,
		architecture: architecture,
		links:        f.links(board),
		changing:     make(chan struct{}, 1),
		presence:     cmp.Or(spec.Presence, Present),
		instances:    newInstances(board),
		retrain:      f.Habits.MIGRetrain.Duration,
		sensors:      idleSensors,
	}
	if err := g.setUp(); err != nil {
		return nil, err
	}
	return g, nil
}

// links wires a board's NVLink ports to the machine's switches, in order.
func (f File) links(board catalog.Board) []link {
	if board.NVLink == nil {
		return nil
	}
	links := make([]link, board.NVLink.Links)
	next := 0
	for i := range f.NVSwitches {
		for range f.NVSwitches[i].LinksPerGPU {
			links[next].remote = &f.NVSwitches[i]
			next++
		}
	}
	return links
}

// deriveUUID makes the same UUID for the same GPU of the same machine, with
// version 4 and variant bits set as NVIDIA's UUIDs have.
func deriveUUID(machine string, index int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "nvmlsim %s %d uuid", machine, index))
	d := []byte(hex.EncodeToString(sum[:16]))
	d[12] = '4'
	d[16] = "89ab"[d[16]&3]
	return "GPU-" + hyphenated(d)
}

func hyphenated(d []byte) string {
	return fmt.Sprintf("%s-%s-%s-%s-%s", d[0:8], d[8:12], d[12:16], d[16:20], d[20:32])
}

// switched reports whether the GPU has at least one link into an NVSwitch.
func (g *gpu) switched() bool {
	for _, l := range g.links {
		if l.remote != nil {
			return true
		}
	}
	return false
}

// fabricCapable reports whether the driver registers the GPU with a fabric
// manager that reports state: from Hopper on, where an NVSwitch is there.
func (g *gpu) fabricCapable() bool {
	return g.architecture >= nvml.DEVICE_ARCH_HOPPER && g.switched()
}

// supportedEvents is the mask of nvmlDeviceGetSupportedEventTypes.
func (m *Machine) supportedEvents(g *gpu) uint64 {
	mask := uint64(nvml.EventTypePState | nvml.EventTypeXidCriticalError | nvml.EventTypeClock)
	if g.board.ECC {
		mask |= nvml.EventTypeSingleBitEccError | nvml.EventTypeDoubleBitEccError
	}
	if m.hasRecoveryAction() {
		mask |= nvml.EventTypeGpuRecoveryAction
	}
	return mask
}

var computeModes = map[nvml.ComputeMode]string{
	nvml.COMPUTEMODE_DEFAULT:           "Default",
	nvml.COMPUTEMODE_PROHIBITED:        "Prohibited",
	nvml.COMPUTEMODE_EXCLUSIVE_PROCESS: "Exclusive_Process",
}

// state is called with Machine.mu held.
func (g *gpu) state() GPUState {
	return GPUState{
		Index:           g.index,
		Minor:           g.spec.Minor,
		UUID:            g.spec.UUID,
		ProductName:     g.board.ProductName,
		PCIBusID:        g.address.String(),
		Lost:            g.presence == Lost,
		Absent:          g.presence == Absent,
		ComputeMode:     computeModes[g.computeMode],
		Timeslice:       g.timesliceText(),
		PersistenceMode: g.persistence == nvml.FEATURE_ENABLED,
		MIGCapable:      g.board.MIG != nil,
		MIGMode:         g.migModeText(g.migMode.current),
		PendingMIGMode:  g.migModeText(g.migMode.pending),
		InUse:           g.inUse(),
		Condition:       g.condition,
		Use:             g.work.UseState,
		Instances:       g.instanceStates(),
	}
}
