package wire

import (
	"encoding/binary"
	"reflect"
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// request builds the frame that the shim would send.
type request struct{ frame []byte }

func newRequest(name string, args int) *request {
	return &request{append(append([]byte{byte(len(name))}, name...), byte(args))}
}

func (r *request) u8(n uint8) *request { r.frame = append(r.frame, n); return r }
func (r *request) u32(n uint32) *request {
	r.frame = binary.NativeEndian.AppendUint32(r.frame, n)
	return r
}
func (r *request) u64(n uint64) *request {
	r.frame = binary.NativeEndian.AppendUint64(r.frame, n)
	return r
}

func getName(device uint64, room, length uint32) []byte {
	return newRequest("nvmlDeviceGetName", 3).
		u8(uint8(Handle)).u64(device).
		u8(uint8(Out)).u8(1).u32(room).
		u8(uint8(U32)).u32(length).frame
}

func TestDecodeRequestRefuses(t *testing.T) {
	valid := getName(0x10, 96, 96)
	frames := map[string][]byte{
		"an empty frame":               {},
		"a name that is cut short":     valid[:8],
		"a name that is no function's": newRequest("nvml/../Init", 0).frame,
		"a refusal with two arguments": newRequest("nvmlDeviceGetFanSpeed", 2).u8(uint8(Handle)).u64(1).u8(uint8(Handle)).u64(1).frame,
		"too few arguments":            newRequest("nvmlDeviceGetName", 2).frame,
		"an argument of another kind":  newRequest("nvmlDeviceGetIndex", 2).u8(uint8(U64)).u64(1).u8(uint8(Out)).u8(0).frame,
		"a frame that is cut short":    valid[:len(valid)-1],
		"a frame with more after it":   append(append([]byte{}, valid...), 0),
		"more room than the length":    getName(0x10, 97, 96),
		"room that overflows":          getName(0x10, 0xffffffff, 0xffffffff),
		"a struct of another size":     newRequest("nvmlDeviceGetMemoryInfo", 2).u8(uint8(Handle)).u64(1).u8(uint8(Out)).u8(1).u32(23).frame,
		"a versioned struct of 3 byte": newRequest("nvmlDeviceGetMemoryInfo_v2", 2).u8(uint8(Handle)).u64(1).u8(uint8(Versioned)).u8(1).u32(3).u8(0).u8(0).u8(0).frame,
		"a struct without its head":    newRequest("nvmlGpmMetricsGet", 1).u8(uint8(Tailed)).u8(1).u32(8).u64(1).frame,
		"a string longer than the frame": newRequest("nvmlDeviceGetHandleByUUID", 2).
			u8(uint8(String)).u8(1).u32(1 << 30).frame,
		"a count that is cut short": newRequest("nvmlDeviceGetComputeRunningProcesses_v3", 3).
			u8(uint8(Handle)).u64(1).u8(uint8(InOut)).u8(1).u32(0).u8(uint8(Out)).u8(1).u32(0).frame,
	}
	for name, frame := range frames {
		t.Run(name, func(t *testing.T) {
			if f, _, err := decodeRequest(frame); err == nil {
				t.Errorf("accepted as a call to %s", f.Name)
			}
		})
	}
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add(getName(0x10, 96, 96))
	f.Add(newRequest("nvmlInit_v2", 0).frame)
	f.Add(newRequest("nvmlDeviceGetFieldValues", 3).u8(uint8(Handle)).u64(1).u8(uint8(U32)).u32(0).u8(uint8(InOut)).u8(1).u32(0).frame)
	for name := range functionsByName {
		f.Add(newRequest(name, len(functionsByName[name].Args)).frame)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		f, args, err := decodeRequest(frame)
		if err != nil {
			return
		}
		for i, a := range f.Args {
			if a.isRead() && args[i].present && len(args[i].data) != args[i].room {
				t.Errorf("argument %d of %s has %d bytes for %d", i, f.Name, len(args[i].data), args[i].room)
			}
			if a.IsMemory() && args[i].room > MaxFrame {
				t.Errorf("argument %d of %s has room for %d bytes", i, f.Name, args[i].room)
			}
		}
		// Whatever a client says, a session answers or refuses and stays alive.
		s := newSession(refusing{})
		s.countInit(1)
		result := serveCall(&call{session: s, f: f, args: args})
		if reply := encodeReply(f, args, uint32(result)); len(reply) > MaxFrame {
			t.Errorf("the reply to %s has %d bytes", f.Name, len(reply))
		}
	})
}

func FuzzDecodeHello(f *testing.F) {
	f.Add([]byte(libraryMagic + "\x03\x01\xff\xff\x01\x00\x00\x000123456789abcdef"))
	f.Add([]byte(libraryMagic + "\x03\x01\x01\x00\x01\x00\x00\x000123456789abcdef\x07\x00\x00\x00"))
	f.Add([]byte(controlMagic))
	f.Fuzz(func(t *testing.T, frame []byte) {
		h, err := decodeHello(frame)
		if err == nil && h.visible.All && len(h.visible.Minors) > 0 {
			t.Errorf("a client sees all GPUs and the minors %v", h.visible.Minors)
		}
	})
}

// refusing is a library without GPUs: its functions are never handed a device.
type refusing struct{ nvml.Interface }

func (refusing) Refuse(string, nvml.Device) nvml.Return            { return nvml.ERROR_NOT_SUPPORTED }
func (refusing) Close()                                            {}
func (refusing) Init() nvml.Return                                 { return nvml.ERROR_DRIVER_NOT_LOADED }
func (refusing) Shutdown() nvml.Return                             { return nvml.ERROR_UNINITIALIZED }
func (refusing) SystemGetDriverVersion() (string, nvml.Return)     { return "1.2", nvml.SUCCESS }
func (refusing) SystemGetNVMLVersion() (string, nvml.Return)       { return "1.2", nvml.SUCCESS }
func (refusing) SystemGetCudaDriverVersion() (int, nvml.Return)    { return 1, nvml.SUCCESS }
func (refusing) SystemGetCudaDriverVersion_v2() (int, nvml.Return) { return 1, nvml.SUCCESS }
func (refusing) DeviceGetCount() (int, nvml.Return)                { return 0, nvml.SUCCESS }
func (refusing) DeviceGetHandleByIndex(int) (nvml.Device, nvml.Return) {
	return nil, nvml.ERROR_NOT_FOUND
}
func (refusing) DeviceGetHandleByUUID(string) (nvml.Device, nvml.Return) {
	return nil, nvml.ERROR_NOT_FOUND
}
func (refusing) DeviceGetHandleByPciBusId(string) (nvml.Device, nvml.Return) {
	return nil, nvml.ERROR_NOT_FOUND
}
func (refusing) EventSetCreate() (nvml.EventSet, nvml.Return) { return nil, nvml.ERROR_MEMORY }

func TestTravellingFunctionsAreTheModelledOnes(t *testing.T) {
	var names []string
	for _, f := range slices.Concat(Functions(), Extensions()) {
		if f.Name != "nvmlSimDeviceNodes" { // the library's own
			names = append(names, f.Name)
		}
	}
	slices.Sort(names)
	if want := slices.Sorted(slices.Values(model.Functions)); !slices.Equal(names, want) {
		t.Errorf("the functions that travel are\n%q\nthe modelled ones are\n%q", names, want)
	}
}

// Every function without an answer of its own maps onto a method whose
// parameters and results its arguments cover one to one.
func TestSignaturesFitTheirMethods(t *testing.T) {
	for _, f := range Functions() {
		if f.method == "" || f.serve != nil && f.method != "Init" && f.method != "Shutdown" {
			continue
		}
		method, ok := f.receiver().MethodByName(f.method)
		if !ok {
			t.Errorf("%s: %v has no method %s", f.Name, f.receiver(), f.method)
			continue
		}
		in, out := 0, 0
		for i, a := range f.Args {
			switch {
			case i == 0 && a.Kind == Handle || f.counts(i):
			case a.isWritten():
				out++
			default:
				in++
			}
		}
		if method.Type.NumIn() != in || method.Type.NumOut() != out+1 {
			t.Errorf("%s: %s takes %d and gives %d, but %d arguments go in and %d out",
				f.Name, f.method, method.Type.NumIn(), method.Type.NumOut()-1, in, out)
		}
		if last := method.Type.Out(method.Type.NumOut() - 1); last != reflect.TypeFor[nvml.Return]() {
			t.Errorf("%s: %s ends with %v, not a Return", f.Name, f.method, last)
		}
	}
}
