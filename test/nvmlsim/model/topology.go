package model

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// GetTopologyCommonAncestor implements nvml.Device.
func (d *device) GetTopologyCommonAncestor(other nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
	peer, ret := d.pair("nvmlDeviceGetTopologyCommonAncestor", other)
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	return commonAncestor(d.gpu, peer), nvml.SUCCESS
}

// GetP2PStatus implements nvml.Device. Reads, writes and atomics go over NVLink
// or not at all: cloud machines do not route them between root complexes.
func (d *device) GetP2PStatus(other nvml.Device, index nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
	peer, ret := d.pair("nvmlDeviceGetP2PStatus", other)
	if ret != nvml.SUCCESS {
		return nvml.P2P_STATUS_UNKNOWN, ret
	}
	if index < 0 || index >= nvml.P2P_CAPS_INDEX_UNKNOWN {
		return nvml.P2P_STATUS_UNKNOWN, nvml.ERROR_INVALID_ARGUMENT
	}
	m := d.session.machine
	switched := d.gpu.switched() && peer.switched() && m.fabricState(d.gpu) == FabricCompleted && m.fabricState(peer) == FabricCompleted
	linked := d.gpu == peer || switched
	switch {
	case linked && index != nvml.P2P_CAPS_INDEX_PCI:
		return nvml.P2P_STATUS_OK, nvml.SUCCESS
	case index == nvml.P2P_CAPS_INDEX_NVLINK, linked:
		return nvml.P2P_STATUS_NOT_SUPPORTED, nvml.SUCCESS
	default:
		return nvml.P2P_STATUS_CHIPSET_NOT_SUPPORTED, nvml.SUCCESS
	}
}

// pair enters a function about two GPUs of a session.
func (d *device) pair(function string, other nvml.Device) (*gpu, nvml.Return) {
	if ret := d.enter(function); ret != nvml.SUCCESS {
		return nil, ret
	}
	peer := unwrap(other)
	if peer == nil || peer.session != d.session {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	d.session.machine.mu.Lock()
	defer d.session.machine.mu.Unlock()
	if !peer.gpu.reachable() {
		return nil, nvml.ERROR_GPU_IS_LOST
	}
	return peer.gpu, nvml.SUCCESS
}

// commonAncestor is the lowest thing that both GPUs hang below.
func commonAncestor(a, b *gpu) nvml.GpuTopologyLevel {
	switch {
	case a == b:
		return nvml.TOPOLOGY_INTERNAL
	case a.spec.PCIRoot == b.spec.PCIRoot:
		return belowRoot(a.spec.PCIBridges, b.spec.PCIBridges)
	case a.spec.NUMANode == b.spec.NUMANode:
		return nvml.TOPOLOGY_NODE
	default:
		return nvml.TOPOLOGY_SYSTEM
	}
}

// belowRoot compares two paths of bridges below one root. Traffic between GPUs
// that share no bridge goes through the host bridge; otherwise it turns at the
// last shared bridge, and stays within one switch if at most one further bridge,
// the switch's downstream port, is on either side.
func belowRoot(a, b []string) nvml.GpuTopologyLevel {
	shared := 0
	for shared < len(a) && shared < len(b) && a[shared] == b[shared] {
		shared++
	}
	switch {
	case shared == 0:
		return nvml.TOPOLOGY_HOSTBRIDGE
	case len(a)-shared <= 1 && len(b)-shared <= 1:
		return nvml.TOPOLOGY_SINGLE
	default:
		return nvml.TOPOLOGY_MULTIPLE
	}
}
