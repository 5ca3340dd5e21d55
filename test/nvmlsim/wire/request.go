package wire

import (
	"encoding/binary"
	"fmt"
	"regexp"
)

// MaxFrame is the size of the largest frame, in bytes.
const MaxFrame = 64 << 10

// maxRoom bounds what one array can be answered with, whatever room the client
// has for it.
const maxRoom = MaxFrame / 2

// value is one argument of a call as the client sent it, and its answer.
type value struct {
	number  uint64
	text    string
	present bool
	// data is a copy of the client's memory, for arguments that are read.
	data []byte
	// room is how many bytes the client has behind the pointer.
	room int
	// answer is what to write there.
	answer []byte
}

// reader takes bytes off a frame; after the first shortage it only has zeros.
type reader struct {
	rest  []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.rest) {
		r.short, r.rest = true, nil
		return nil
	}
	taken := r.rest[:n:n]
	r.rest = r.rest[n:]
	return taken
}

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if b := r.take(2); b != nil {
		return binary.NativeEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.NativeEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.NativeEndian.Uint64(b)
	}
	return 0
}

// decodeRequest reads a call. An error means that the client does not speak
// the protocol; a mistake of the client's user, such as NULL, is not one.
func decodeRequest(frame []byte) (*Function, []value, error) {
	r := &reader{rest: frame}
	name := string(r.take(int(r.u8())))
	n := int(r.u8())
	f := Lookup(name)
	if f == nil {
		if f = refusal(name, n); f == nil {
			return nil, nil, fmt.Errorf("the call names %q with %d arguments, which is no function", name, n)
		}
	}
	if n != len(f.Args) {
		return nil, nil, fmt.Errorf("the call to %s has %d arguments, not %d", name, n, len(f.Args))
	}
	args := make([]value, len(f.Args))
	for i, a := range f.Args {
		if kind := Kind(r.u8()); kind != a.Kind {
			return nil, nil, fmt.Errorf("argument %d of the call to %s has kind %d, not %d", i, name, kind, a.Kind)
		}
		args[i] = r.value(a)
	}
	if r.short || len(r.rest) != 0 {
		return nil, nil, fmt.Errorf("the call to %s is %d bytes long, which does not fit its arguments", name, len(frame))
	}
	for i := range f.Args {
		if err := checkExtent(f, args, i); err != nil {
			return nil, nil, err
		}
	}
	return f, args, nil
}

var functionName = regexp.MustCompile(`^nvml[A-Za-z0-9_]{1,80}$`)

// refusal is the signature of a function that is not among Functions: of its
// arguments only a device that comes first travels.
func refusal(name string, args int) *Function {
	if !functionName.MatchString(name) || args > 1 {
		return nil
	}
	f := fn(name, "", []Arg{handle}[:args]...).answering(serveRefusal)
	return &f
}

func (r *reader) value(a Arg) value {
	switch a.Kind {
	case Handle, U64:
		return value{number: r.u64(), present: true}
	case U32:
		return value{number: uint64(r.u32()), present: true}
	case String:
		if r.u8() == 0 {
			return value{}
		}
		return value{text: string(r.take(int(r.u32()))), present: true}
	}
	if r.u8() == 0 {
		return value{}
	}
	v := value{room: int(r.u32()), present: true}
	if a.isRead() {
		v.data = r.take(v.room)
	}
	return v
}

// checkExtent holds what the client says is behind a pointer against the
// signature and against the argument that counts the elements.
func checkExtent(f *Function, args []value, i int) error {
	a, v := f.Args[i], args[i]
	if !a.IsMemory() || !v.present {
		return nil
	}
	want := a.Size
	switch {
	case a.Kind == Versioned:
		if v.room >= 4 && v.room <= a.Size {
			return nil
		}
	case a.Kind == Tailed:
		if head := a.Size % a.Tail; v.room >= head && v.room <= a.Size && v.room%a.Tail == head {
			return nil
		}
	case a.Count == CountAny:
		want = maxRoom / a.Size * a.Size
	case a.Count >= 0 && a.Kind == Out:
		want = min(int(args[a.Count].count()), maxRoom/a.Size) * a.Size
	case a.Count >= 0:
		want = int(args[a.Count].count()) * a.Size
	}
	if v.room != want {
		return fmt.Errorf("argument %d of the call to %s has room for %d bytes, not %d", i, f.Name, v.room, want)
	}
	return nil
}

// count is the value of an argument that counts elements, by value or behind a
// pointer.
func (v value) count() uint32 {
	if len(v.data) == 4 {
		return binary.NativeEndian.Uint32(v.data)
	}
	return uint32(v.number)
}

// encodeReply writes the answer to a call.
func encodeReply(f *Function, args []value, result uint32) []byte {
	frame := binary.NativeEndian.AppendUint32(nil, result)
	for i, a := range f.Args {
		if !a.isWritten() || !args[i].present {
			continue
		}
		frame = binary.NativeEndian.AppendUint32(frame, uint32(len(args[i].answer)))
		frame = append(frame, args[i].answer...)
	}
	return frame
}
