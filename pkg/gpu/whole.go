package gpu

import "fmt"

// Whole is the shape of an entire GPU, given to one claim at a time.
type Whole struct{ GPU GPU }

// Name is gpu-<minor>, as in NVIDIA's driver.
func (w Whole) Name() string { return fmt.Sprintf("gpu-%d", w.GPU.Minor) }

// Type is "gpu".
func (w Whole) Type() string { return "gpu" }

// Physical is the GPU itself.
func (w Whole) Physical() GPU { return w.GPU }

// Form has no placement.
func (w Whole) Form() Form { return Form{Base: BaseWhole} }

// UUID is the GPU's.
func (w Whole) UUID() string { return w.GPU.UUID }

// MemoryBytes is the GPU's frame buffer.
func (w Whole) MemoryBytes() uint64 { return w.GPU.MemoryBytes }

// Uses is a part of every memory slice, so that no partition gets a whole one.
func (w Whole) Uses(c Counter) uint64 { return c.whole }

// Describe adds the engines of the GPU's largest profile if MIG can be enabled without a
// reset, as NVIDIA's driver does. On other boards the GPU has more than the largest
// profile.
func (w Whole) Describe(d Description) {
	w.identify(d)
	if w.GPU.MemoryBytes != 0 { // a claim that asks for memory must not match by accident
		d.Bytes(CapacityMemory, w.GPU.MemoryBytes)
	}
	if w.GPU.MIGSwitchable && len(w.GPU.Profiles) > 0 {
		w.GPU.FreeResources().Engines.describe(d)
	}
}

func (w Whole) identify(d Description) {
	d.Text(AttributeUUID, w.GPU.UUID)
	d.Number(AttributeIndex, &w.GPU.Index)
	d.Number(AttributeMinor, &w.GPU.Minor)
	d.Truth(AttributeECCEnabled, w.GPU.ECCEnabled)
	d.Number(AttributeNVLinkGroup, w.GPU.NVLinkGroup)
}

func (w Whole) sharedType(s Sharing) string { return s.Name() }

// sharedUses leaves nothing of the GPU to other shapes.
func (w Whole) sharedUses(c Counter) uint64 { return c.shared }

// OffersWhole reports whether a claim can get the entire GPU: not while it has instances, nor
// while MIG is enabled, unless the mode changes without a reset.
func (g GPU) OffersWhole() bool {
	return g.MIG != MIGEnabled || g.MIGSwitchable && len(g.Instances) == 0
}
