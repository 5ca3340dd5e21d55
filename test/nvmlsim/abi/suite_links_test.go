package abi_test

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

func (s suite) nvLink(t *testing.T) {
	s.each(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		refuses(t, "a link past the end", nvml.ERROR_INVALID_ARGUMENT)(d.GetNvLinkState(nvml.NVLINK_MAX_LINKS))
		board := s.board(t, gpu)
		if board.NVLink == nil {
			refuses(t, "GetNvLinkState without NVLink", nvml.ERROR_NOT_SUPPORTED)(d.GetNvLinkState(0))
			refuses(t, "GetNvLinkRemotePciInfo without NVLink", nvml.ERROR_NOT_SUPPORTED)(d.GetNvLinkRemotePciInfo(0))
			return
		}
		remotes := s.remotes()
		for link := range board.NVLink.Links {
			if link >= len(remotes) {
				gives(t, "the state of an unused link", nvml.FEATURE_DISABLED)(d.GetNvLinkState(link))
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
		info, ret := d.GetGpuFabricInfo()
		v2, ret2 := d.GetGpuFabricInfoV().V2()
		v3, ret3 := d.GetGpuFabricInfoV().V3()
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
		if info.State != nvml.GPU_FABRIC_STATE_COMPLETED || v2.State != info.State || v3.State != info.State ||
			v2.HealthMask != v3.HealthMask || v3.HealthSummary != nvml.GPU_FABRIC_HEALTH_SUMMARY_HEALTHY {
			t.Errorf("the fabric is %+v, %+v and %+v, want it completed and healthy", info, v2, v3)
		}
	})
}

// lateFabric: links come only when the fabric manager is done.
func (s suite) lateFabric(t *testing.T) {
	if len(s.node.NVSwitches) == 0 {
		if err := s.control.SetFabric(model.FabricInProgress); err == nil {
			t.Error("a machine without NVSwitches has a fabric manager")
		}
		return
	}
	t.Cleanup(func() { act(t, s.control.SetFabric(model.FabricCompleted)) })
	lib := initialised(t)
	first := device(t, lib, 0)
	for number, state := range []model.Fabric{model.FabricNotStarted, model.FabricInProgress, model.FabricCompleted} {
		act(t, s.control.SetFabric(state))
		if got := s.state(t).Fabric; got != state {
			t.Errorf("the machine's state says that the fabric is %s, want %s", got, state)
		}
		active, remote := nvml.FEATURE_DISABLED, nvml.ERROR_NOT_SUPPORTED
		if state == model.FabricCompleted {
			active, remote = nvml.FEATURE_ENABLED, nvml.SUCCESS
		}
		gives(t, "the state of a link", active)(first.GetNvLinkState(0))
		_, ret := first.GetNvLinkRemoteDeviceType(0)
		returns(t, "GetNvLinkRemoteDeviceType", remote, ret)
		info, ret := first.GetGpuFabricInfo()
		v3, _ := first.GetGpuFabricInfoV().V3()
		want := uint8(number + 1) // NVML_GPU_FABRIC_STATE_NOT_STARTED is 1
		if ret != nvml.ERROR_NOT_SUPPORTED && (info.State != want || v3.State != want || (v3.HealthMask != 0) != (state == model.FabricCompleted)) {
			t.Errorf("while the fabric is %s, its states are %d and %d with health %#x, want %d", state, info.State, v3.State, v3.HealthMask, want)
		}
	}
	if err := s.control.SetFabric("done"); err == nil {
		t.Error("a state that is none was accepted")
	}
}
