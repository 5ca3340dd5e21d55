package abi_test

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/catalog"
)

func (s suite) migProfiles(t *testing.T) {
	s.each(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		board := s.board(t, gpu)
		found := 0
		for enum := range nvml.GPU_INSTANCE_PROFILE_COUNT {
			info, ret := d.GetGpuInstanceProfileInfo(enum)
			p, exists := profile(board, enum)
			if !exists {
				returns(t, "a profile that the board lacks", nvml.ERROR_NOT_SUPPORTED, ret)
				continue
			}
			found++
			gives(t, "profile "+p.Name, nvml.GpuInstanceProfileInfo{
				Id: uint32(p.ID), SliceCount: uint32(p.Slices), InstanceCount: uint32(p.MaxInstances), MultiprocessorCount: uint32(p.Multiprocessors),
				CopyEngineCount: uint32(p.CopyEngines), DecoderCount: uint32(p.Decoders), EncoderCount: uint32(p.Encoders),
				JpegCount: uint32(p.JPEGEngines), OfaCount: uint32(p.OFAEngines), MemorySizeMB: p.MemoryMiB,
			})(info, ret)
			if s.enabled(gpu) {
				continue
			}
			refuses(t, "GetGpuInstances without MIG", nvml.ERROR_NOT_SUPPORTED)(d.GetGpuInstances(&info))
			refuses(t, "GetGpuInstanceRemainingCapacity without MIG", nvml.ERROR_NOT_SUPPORTED)(d.GetGpuInstanceRemainingCapacity(&info))
		}
		if board.MIG == nil {
			return
		}
		if found != len(board.MIG.Profiles) {
			t.Errorf("GPU %d lists %d profiles, want %d", gpu, found, len(board.MIG.Profiles))
		}
		// Callers enumerate until the first constant that the library does not know.
		refuses(t, "a profile past the end", nvml.ERROR_INVALID_ARGUMENT)(d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_COUNT))
	})
}

func profile(board catalog.Board, enum int) (catalog.Profile, bool) {
	if board.MIG == nil {
		return catalog.Profile{}, false
	}
	return board.MIG.ProfileByEnum(enum)
}
