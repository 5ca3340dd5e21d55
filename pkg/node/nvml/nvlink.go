package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// links are the NVLinks of a GPU.
type links struct {
	link gpu.Link
	// states are those that were read, by number; empty on a board without NVLink.
	states []nvml.EnableState
}

// group groups GPUs by their NVLinks.
func (s *session) group(gpus []gpu.GPU) []gpu.GPU {
	reached := map[string]gpu.Link{}
	for _, g := range gpus {
		if d := s.known(g.UUID); d != nil && d.looking.TryLock() { // one that does not answer is held
			if d.sight != nil {
				reached[g.UUID] = d.sight.links.link
			}
			d.looking.Unlock()
		}
	}
	return gpu.GroupByNVLink(gpus, reached)
}

// readLinks stops at the first link into a switch: all links of a GPU then end in the same fabric. A
// link that cannot be read counts as absent, unless the GPU is lost.
func (d *device) readLinks() (links, error) {
	var all links
	for number := range nvml.NVLINK_MAX_LINKS {
		state, there, err := d.linkState(number)
		if err != nil || !there {
			return all, err
		}
		all.states = append(all.states, state)
		if state != nvml.FEATURE_ENABLED {
			continue
		}
		switch remote, ret := d.GetNvLinkRemoteDeviceType(number); {
		case ret == nvml.SUCCESS && remote == nvml.NVLINK_DEVICE_TYPE_SWITCH:
			all.link = gpu.Link{Switched: true}
			return all, nil
		case ret == nvml.SUCCESS && remote == nvml.NVLINK_DEVICE_TYPE_GPU:
			all.link.Peers = append(all.link.Peers, d.peerAt(number)...)
		}
	}
	return all, nil
}

// linkState is the state of a link; there is false beyond the board's last one.
func (d *device) linkState(number int) (state nvml.EnableState, there bool, err error) {
	state, ret := d.GetNvLinkState(number)
	switch ret {
	case nvml.SUCCESS:
		return state, true, nil
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INVALID_ARGUMENT:
		return nvml.FEATURE_DISABLED, false, nil
	case nvml.ERROR_GPU_IS_LOST:
		return nvml.FEATURE_DISABLED, false, check(ret, fmt.Sprintf("read NVLink %d", number), d.uuid)
	}
	return nvml.FEATURE_DISABLED, true, nil
}

// peerAt is the UUID of the GPU at the other end of a link. It is empty if that GPU is not visible, as
// in a virtual machine with only some, or does not answer, which is no reason to withdraw this one.
func (d *device) peerAt(number int) []string {
	remote, ret := d.GetNvLinkRemotePciInfo(number)
	if ret != nvml.SUCCESS {
		return nil
	}
	peer, ret := d.session.api.DeviceGetHandleByPciBusId(sysfsBusID(remote))
	if ret != nvml.SUCCESS {
		return nil
	}
	uuid, ret := peer.GetUUID()
	if ret != nvml.SUCCESS {
		return nil
	}
	return []string{uuid}
}

// fabricSymbol is missing in drivers without fabric state.
const fabricSymbol = "nvmlDeviceGetGpuFabricInfo"

// readFabric is the GPU's state in the NVLink fabric, which the fabric manager sets.
func (d *device) readFabric() (gpu.FabricState, error) {
	if d.session.api.Extensions().LookupSymbol(fabricSymbol) != nil {
		return gpu.FabricReady, nil
	}
	info, ret := d.GetGpuFabricInfo()
	if ret == nvml.ERROR_GPU_IS_LOST {
		return gpu.FabricReady, check(ret, "read the state in the fabric", d.uuid)
	}
	switch {
	case ret == nvml.SUCCESS && info.State == nvml.GPU_FABRIC_STATE_NOT_STARTED:
		return gpu.FabricNotStarted, nil
	case ret == nvml.SUCCESS && info.State == nvml.GPU_FABRIC_STATE_IN_PROGRESS:
		return gpu.FabricInProgress, nil
	}
	return gpu.FabricReady, nil // or it needs none
}
