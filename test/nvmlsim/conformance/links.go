package conformance

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// remotes lists the switch behind each link that is wired.
func (s suite) remotes() []model.NVSwitch {
	var remotes []model.NVSwitch
	for _, sw := range s.node.NVSwitches {
		for range sw.LinksPerGPU {
			remotes = append(remotes, sw)
		}
	}
	return remotes
}

var nvlinkVersions = map[string]uint32{"3.0": uint32(nvml.NVLINK_VERSION_3_0), "4.0": uint32(nvml.NVLINK_VERSION_4_0), "5.0": uint32(nvml.NVLINK_VERSION_5_0)}

func (s suite) nvLink(t *testing.T) {
	s.each(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		refuses(t, "a link past the end", nvml.ERROR_INVALID_ARGUMENT)(d.GetNvLinkState(nvml.NVLINK_MAX_LINKS))
		board := s.board(t, gpu)
		if board.NVLink == nil {
			refuses(t, "GetNvLinkState without NVLink", nvml.ERROR_NOT_SUPPORTED)(d.GetNvLinkState(0))
			refuses(t, "GetNvLinkVersion without NVLink", nvml.ERROR_NOT_SUPPORTED)(d.GetNvLinkVersion(0))
			refuses(t, "GetNvLinkRemotePciInfo without NVLink", nvml.ERROR_NOT_SUPPORTED)(d.GetNvLinkRemotePciInfo(0))
			return
		}
		remotes := s.remotes()
		for link := range board.NVLink.Links {
			gives(t, "the version of a link", nvlinkVersions[board.NVLink.Version])(d.GetNvLinkVersion(link))
			if link >= len(remotes) {
				gives(t, "the state of an unused link", nvml.FEATURE_DISABLED)(d.GetNvLinkState(link))
				gives(t, "whether an unused link is valid", uint32(0))(d.GetNvLinkCapability(link, nvml.NVLINK_CAP_VALID))
				continue
			}
			s.wiredLink(t, d, link, remotes[link])
		}
		refuses(t, "a link that the board lacks", nvml.ERROR_INVALID_ARGUMENT)(d.GetNvLinkState(board.NVLink.Links))
	})
}

func (s suite) wiredLink(t *testing.T, d nvml.Device, link int, remote model.NVSwitch) {
	t.Helper()
	gives(t, "the state of a link", nvml.FEATURE_ENABLED)(d.GetNvLinkState(link))
	gives(t, "the remote end", nvml.NVLINK_DEVICE_TYPE_SWITCH)(d.GetNvLinkRemoteDeviceType(link))
	gives(t, "whether a link does peer to peer", uint32(1))(d.GetNvLinkCapability(link, nvml.NVLINK_CAP_P2P_SUPPORTED))
	refuses(t, "an unknown capability", nvml.ERROR_INVALID_ARGUMENT)(d.GetNvLinkCapability(link, nvml.NVLINK_CAP_COUNT))
	info, ret := d.GetNvLinkRemotePciInfo(link)
	if remote.PCIBusID == "" {
		returns(t, "the address of a switch that is no PCI device", nvml.ERROR_NOT_SUPPORTED, ret)
		return
	}
	returns(t, "GetNvLinkRemotePciInfo", nvml.SUCCESS, ret)
	got, err := model.ParsePCIAddress(text(info.BusId[:]))
	if err != nil || got.String() != remote.PCIBusID || info.PciDeviceId>>16 != uint32(remote.PCIDeviceID) {
		t.Errorf("link %d ends in %s (%v), device ID %#x; want %s", link, got, err, info.PciDeviceId, remote.PCIBusID)
	}
}

func (s suite) fabric(t *testing.T) {
	s.each(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		board := s.board(t, gpu)
		calls := versioned(d)
		info, ret := d.GetGpuFabricInfo()
		v2, ret2 := calls.fabricV2()
		v3, ret3 := calls.fabricV3()
		want := nvml.ERROR_NOT_SUPPORTED
		if board.NVLink != nil && len(s.node.NVSwitches) > 0 && board.NVLink.Version >= "4.0" {
			want = nvml.SUCCESS
		}
		returns(t, "GetGpuFabricInfo", want, ret)
		returns(t, "GetGpuFabricInfoV V2", want, ret2)
		returns(t, "GetGpuFabricInfoV V3", want, ret3)
		if want != nvml.SUCCESS {
			return
		}
		if info.State != nvml.GPU_FABRIC_STATE_COMPLETED || v2.State != info.State || v3.State != info.State {
			t.Errorf("fabric states are %d, %d and %d, want all completed", info.State, v2.State, v3.State)
		}
		if v3.HealthSummary != nvml.GPU_FABRIC_HEALTH_SUMMARY_HEALTHY || v3.HealthMask != v2.HealthMask {
			t.Errorf("fabric health is %d and masks are %#x and %#x", v3.HealthSummary, v2.HealthMask, v3.HealthMask)
		}
	})
}

// lateFabric: links and peers come only when the fabric manager is done.
func (s suite) lateFabric(t *testing.T) {
	if len(s.node.NVSwitches) == 0 {
		if err := s.control.SetFabric(model.FabricInProgress); err == nil {
			t.Error("a machine without NVSwitches has a fabric manager")
		}
		return
	}
	t.Cleanup(func() { act(t, s.control.SetFabric(model.FabricCompleted)) })
	lib := s.open(t)
	first, second := device(t, lib, 0), device(t, lib, 1)
	for number, state := range []model.Fabric{model.FabricNotStarted, model.FabricInProgress, model.FabricCompleted} {
		act(t, s.control.SetFabric(state))
		if got := s.state(t).Fabric; got != state {
			t.Errorf("the machine's state says that the fabric is %s, want %s", got, state)
		}
		active, remote, peers := nvml.FEATURE_DISABLED, nvml.ERROR_NOT_SUPPORTED, nvml.P2P_STATUS_NOT_SUPPORTED
		if state == model.FabricCompleted {
			active, remote, peers = nvml.FEATURE_ENABLED, nvml.SUCCESS, nvml.P2P_STATUS_OK
		}
		gives(t, "the state of a link", active)(first.GetNvLinkState(0))
		gives(t, "whether the link is valid", uint32(1))(first.GetNvLinkCapability(0, nvml.NVLINK_CAP_VALID))
		gives(t, "peer to peer over NVLink", peers)(first.GetP2PStatus(second, nvml.P2P_CAPS_INDEX_NVLINK))
		_, ret := first.GetNvLinkRemoteDeviceType(0)
		returns(t, "GetNvLinkRemoteDeviceType", remote, ret)
		info, ret := first.GetGpuFabricInfo()
		v3, _ := versioned(first).fabricV3()
		want := uint8(number + 1) // NVML_GPU_FABRIC_STATE_NOT_STARTED is 1
		if ret != nvml.ERROR_NOT_SUPPORTED && (info.State != want || v3.State != want || (v3.HealthMask != 0) != (state == model.FabricCompleted)) {
			t.Errorf("while the fabric is %s, its states are %d and %d with health %#x, want %d", state, info.State, v3.State, v3.HealthMask, want)
		}
	}
	if err := s.control.SetFabric("done"); err == nil {
		t.Error("a state that is none was accepted")
	}
}

func (s suite) topology(t *testing.T) {
	lib := s.open(t)
	for i, a := range s.node.GPUs {
		for j, b := range s.node.GPUs {
			level, ret := device(t, lib, i).GetTopologyCommonAncestor(device(t, lib, j))
			returns(t, "GetTopologyCommonAncestor", nvml.SUCCESS, ret)
			back, _ := device(t, lib, j).GetTopologyCommonAncestor(device(t, lib, i))
			if level != back {
				t.Errorf("GPUs %d and %d are %d apart one way and %d the other", i, j, level, back)
			}
			var plausible bool
			switch {
			case i == j:
				plausible = level == nvml.TOPOLOGY_INTERNAL
			case a.PCIRoot == b.PCIRoot:
				plausible = level == nvml.TOPOLOGY_SINGLE || level == nvml.TOPOLOGY_MULTIPLE || level == nvml.TOPOLOGY_HOSTBRIDGE
			case a.NUMANode == b.NUMANode:
				plausible = level == nvml.TOPOLOGY_NODE
			default:
				plausible = level == nvml.TOPOLOGY_SYSTEM
			}
			if !plausible {
				t.Errorf("GPUs %d (%s) and %d (%s) have common ancestor %d", i, a.PCIRoot, j, b.PCIRoot, level)
			}
		}
	}
}

func (s suite) peerToPeer(t *testing.T) {
	lib := s.open(t)
	for i := range s.node.GPUs {
		for j := range s.node.GPUs {
			if i == j {
				continue
			}
			want := nvml.P2P_STATUS_NOT_SUPPORTED
			if len(s.node.NVSwitches) > 0 {
				want = nvml.P2P_STATUS_OK
			}
			gives(t, "peer to peer over NVLink", want)(device(t, lib, i).GetP2PStatus(device(t, lib, j), nvml.P2P_CAPS_INDEX_NVLINK))
			refuses(t, "an unknown capability", nvml.ERROR_INVALID_ARGUMENT)(device(t, lib, i).GetP2PStatus(device(t, lib, j), 99))
		}
	}
}
