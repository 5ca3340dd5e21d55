package conformance

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func (s suite) migMode(t *testing.T) {
	s.each(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		current, pending, ret := d.GetMigMode()
		if s.board(t, gpu).MIG == nil {
			returns(t, "GetMigMode", nvml.ERROR_NOT_SUPPORTED, ret)
			gives(t, "the number of MIG devices", 0)(d.GetMaxMigDeviceCount())
			refuses(t, "GetMigDeviceHandleByIndex", nvml.ERROR_NOT_SUPPORTED)(d.GetMigDeviceHandleByIndex(0))
			_, ret := d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
			returns(t, "SetMigMode", nvml.ERROR_NOT_SUPPORTED, ret)
			return
		}
		if s.enabled(gpu) {
			gives(t, "the current MIG mode", nvml.DEVICE_MIG_ENABLE)(current, ret)
			gives(t, "the pending MIG mode", nvml.DEVICE_MIG_ENABLE)(pending, ret)
			gives(t, "the number of MIG devices", slicesOf(s.board(t, gpu)))(d.GetMaxMigDeviceCount())
			return
		}
		gives(t, "the current MIG mode", nvml.DEVICE_MIG_DISABLE)(current, ret)
		gives(t, "the pending MIG mode", nvml.DEVICE_MIG_DISABLE)(pending, ret)
		gives(t, "the number of MIG devices", 0)(d.GetMaxMigDeviceCount())
		refuses(t, "GetMigDeviceHandleByIndex", nvml.ERROR_NOT_FOUND)(d.GetMigDeviceHandleByIndex(0))
		refuses(t, "GetGpuInstanceById", nvml.ERROR_NOT_SUPPORTED)(d.GetGpuInstanceById(0))
	})
}

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
			refuses(t, "CreateGpuInstance without MIG", nvml.ERROR_NOT_SUPPORTED)(d.CreateGpuInstance(&info))
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

func (s suite) versionedProfiles(t *testing.T) {
	s.each(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		calls := versioned(d)
		board := s.board(t, gpu)
		for enum := range nvml.GPU_INSTANCE_PROFILE_COUNT {
			p, exists := profile(board, enum)
			if !exists {
				refuses(t, "V2 of a profile that the board lacks", nvml.ERROR_NOT_SUPPORTED)(calls.profileV2(enum))
				refuses(t, "V3 of a profile that the board lacks", nvml.ERROR_NOT_SUPPORTED)(calls.profileV3(enum))
				continue
			}
			v2, ret := calls.profileV2(enum)
			returns(t, "V2 of profile "+p.Name, nvml.SUCCESS, ret)
			gives(t, "V2 of profile "+p.Name+" by ID", v2)(calls.profileByIDV2(p.ID))
			if text(v2.Name[:]) != "MIG "+p.Name || v2.Id != uint32(p.ID) || v2.MemorySizeMB != p.MemoryMiB || v2.MultiprocessorCount != uint32(p.Multiprocessors) {
				t.Errorf("V2 of profile %s is %+v", p.Name, v2)
			}
			v3, ret := calls.profileV3(enum)
			returns(t, "V3 of profile "+p.Name, nvml.SUCCESS, ret)
			gives(t, "V3 of profile "+p.Name+" by ID", v3)(calls.profileByIDV3(p.ID))
			graphics := v3.Capabilities&nvml.GPU_INSTANCE_PROFILE_CAPS_GFX != 0
			if v3.Name != v2.Name || v3.Id != v2.Id || v3.MemorySizeMB != v2.MemorySizeMB || v3.OfaCount != v2.OfaCount || graphics != p.Graphics {
				t.Errorf("V3 of profile %s is %+v, V2 %+v", p.Name, v3, v2)
			}
		}
		refuses(t, "V2 of an unknown ID", nvml.ERROR_NOT_SUPPORTED)(calls.profileByIDV2(9999))
	})
}

func (s suite) migPlacements(t *testing.T) {
	s.each(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		board := s.board(t, gpu)
		if board.MIG == nil {
			refuses(t, "placements without MIG", nvml.ERROR_NOT_SUPPORTED)(d.GetGpuInstancePossiblePlacements(&nvml.GpuInstanceProfileInfo{Id: 0}))
			return
		}
		for _, p := range board.MIG.Profiles {
			var want []nvml.GpuInstancePlacement
			for _, start := range p.Starts {
				want = append(want, nvml.GpuInstancePlacement{Start: uint32(start), Size: uint32(p.Size)})
			}
			gives(t, "placements of "+p.Name, want)(d.GetGpuInstancePossiblePlacements(&nvml.GpuInstanceProfileInfo{Id: uint32(p.ID)}))
		}
		refuses(t, "placements of an unknown profile", nvml.ERROR_NOT_SUPPORTED)(d.GetGpuInstancePossiblePlacements(&nvml.GpuInstanceProfileInfo{Id: 9999}))
		refuses(t, "placements of nothing", nvml.ERROR_INVALID_ARGUMENT)(d.GetGpuInstancePossiblePlacements(nil))
	})
}

func (s suite) fieldValues(t *testing.T) {
	s.each(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		board := s.board(t, gpu)
		values := []nvml.FieldValue{
			{FieldId: nvml.FI_DEV_IS_RESETLESS_MIG_SUPPORTED},
			{FieldId: nvml.FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE},
			{FieldId: nvml.FI_DEV_MEMORY_TEMP},
		}
		returns(t, "GetFieldValues", nvml.SUCCESS, d.GetFieldValues(values))
		returns(t, "an unmodelled field", nvml.ERROR_NOT_SUPPORTED, nvml.Return(values[2].NvmlReturn))
		if board.MIG == nil {
			returns(t, "field 184 without MIG", nvml.ERROR_NOT_SUPPORTED, nvml.Return(values[0].NvmlReturn))
			return
		}
		resetless := byte(0)
		if board.Architecture == "Hopper" || board.Architecture == "Blackwell" {
			resetless = 1
		}
		for i, want := range []byte{resetless, 1} {
			returns(t, "a MIG field", nvml.SUCCESS, nvml.Return(values[i].NvmlReturn))
			if values[i].Value[0] != want || nvml.ValueType(values[i].ValueType) != nvml.VALUE_TYPE_UNSIGNED_INT {
				t.Errorf("field %d is %+v, want %d", values[i].FieldId, values[i], want)
			}
		}
	})
}

// versionedCalls are the calls that go-nvml offers through handlers. In process
// only the model's own methods can stand for them.
type versionedCalls struct {
	profileV2, profileByIDV2 func(int) (nvml.GpuInstanceProfileInfo_v2, nvml.Return)
	profileV3, profileByIDV3 func(int) (nvml.GpuInstanceProfileInfo_v3, nvml.Return)
	fabricV2                 func() (nvml.GpuFabricInfo_v2, nvml.Return)
	fabricV3                 func() (nvml.GpuFabricInfo_v3, nvml.Return)
}

func versioned(d nvml.Device) versionedCalls {
	if v, ok := d.(model.VersionedDevice); ok {
		return versionedCalls{
			profileV2: v.GpuInstanceProfileInfoV2, profileByIDV2: v.GpuInstanceProfileInfoByIDV2,
			profileV3: v.GpuInstanceProfileInfoV3, profileByIDV3: v.GpuInstanceProfileInfoByIDV3,
			fabricV2: v.GpuFabricInfoV2, fabricV3: v.GpuFabricInfoV3,
		}
	}
	return versionedCalls{
		profileV2: func(p int) (nvml.GpuInstanceProfileInfo_v2, nvml.Return) { return d.GetGpuInstanceProfileInfoV(p).V2() },
		profileV3: func(p int) (nvml.GpuInstanceProfileInfo_v3, nvml.Return) { return d.GetGpuInstanceProfileInfoV(p).V3() },
		profileByIDV2: func(id int) (nvml.GpuInstanceProfileInfo_v2, nvml.Return) {
			return d.GetGpuInstanceProfileInfoByIdV(id).V2()
		},
		profileByIDV3: func(id int) (nvml.GpuInstanceProfileInfo_v3, nvml.Return) {
			return d.GetGpuInstanceProfileInfoByIdV(id).V3()
		},
		fabricV2: func() (nvml.GpuFabricInfo_v2, nvml.Return) { return d.GetGpuFabricInfoV().V2() },
		fabricV3: func() (nvml.GpuFabricInfo_v3, nvml.Return) { return d.GetGpuFabricInfoV().V3() },
	}
}
