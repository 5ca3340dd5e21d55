package wire

import (
	"encoding/binary"
	"reflect"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Kind says how one C argument travels. The values are part of the format and
// those of enum arg_kind in the shim.
type Kind uint8

const (
	// Handle is an opaque NVML handle, by value.
	Handle Kind = iota + 1
	// U32 is an integer or enum of 32 bits, by value.
	U32
	// U64 is an integer of 64 bits, by value.
	U64
	// String is a NUL terminated string that the caller owns.
	String
	// In is memory that the call reads.
	In
	// Out is memory that the call writes.
	Out
	// InOut is memory that the call reads and writes.
	InOut
	// Versioned is InOut whose first 32 bits hold a struct's version and size.
	Versioned
	// Tailed is InOut that ends in an array; the second 32 bits count its
	// elements. The head before it is shorter than an element.
	Tailed
)

const (
	// CountOne: the pointer is to one element.
	CountOne = -1
	// CountAny: the pointer is to as many elements as the answer has; NVML
	// trusts the caller to have made room.
	CountAny = -2
)

// Arg describes one argument of a C function.
type Arg struct {
	Kind Kind
	// Type is the go-nvml type of what a pointer points at, one element of it
	// for an array; HandleWord for a handle, byte for text.
	Type reflect.Type
	// Size is the size in bytes of one element.
	Size int
	// Tail is the size of one element of a Tailed struct's array.
	Tail int
	// Count is the index of the argument that says how many elements there
	// are, CountOne or CountAny.
	Count int
	// total is the index of the argument that receives the number of elements of a CountAny.
	total int
	// Version is the word that begins a versioned struct, as NVML_STRUCT_VERSION makes it.
	Version uint32
	// Older are those words of earlier versions, whose structs are the beginning of this one.
	Older []uint32
}

// IsMemory reports whether the argument is a pointer to memory of the caller.
func (a Arg) IsMemory() bool  { return a.Kind >= In }
func (a Arg) isRead() bool    { return a.Kind == In || a.Kind > Out }
func (a Arg) isWritten() bool { return a.Kind >= Out }

// HandleWord stands for a handle in memory.
type HandleWord uint64

var (
	handle = Arg{Kind: Handle, Count: CountOne}
	u32    = Arg{Kind: U32, Count: CountOne}
	u64    = Arg{Kind: U64, Count: CountOne}
	text   = Arg{Kind: String, Count: CountOne}

	out32     = out[uint32]()
	out64     = out[uint64]()
	outHandle = out[HandleWord]()
	inout32   = memory[uint32](InOut, CountOne)
)

func memory[T any](kind Kind, count int) Arg {
	t := reflect.TypeFor[T]()
	return Arg{Kind: kind, Type: t, Size: int(t.Size()), Count: count}
}

func in[T any]() Arg  { return memory[T](In, CountOne) }
func out[T any]() Arg { return memory[T](Out, CountOne) }

// outCounted is an array that the argument with the given index counts.
func outCounted[T any](count int) Arg { return memory[T](Out, count) }

// outUnbounded is an array without a size: NVML trusts the caller to have room
// for all there can be. The argument with the given index takes their number.
func outUnbounded[T any](count int) Arg {
	a := memory[T](Out, CountAny)
	a.total = count
	return a
}

// buffer is room for text, its length in the argument with the given index.
func buffer(length int) Arg { return memory[byte](Out, length) }

// tailed is a struct that ends in an array of elements.
func tailed[T, Element any]() Arg {
	a := memory[T](Tailed, CountOne)
	a.Tail = int(reflect.TypeFor[Element]().Size())
	return a
}

// versioned is a struct that begins with its version and size.
func versioned[T any](number uint32) Arg {
	a := memory[T](Versioned, CountOne)
	a.Version = uint32(a.Size) | number<<24
	return a
}

// orOlder also takes an earlier version.
func (a Arg) orOlder(older Arg) Arg {
	a.Older = append(a.Older, older.Version)
	return a
}

// fits reports whether a client's versioned struct is of a modelled version.
func (a Arg) fits(data []byte) bool {
	if len(data) < 4 {
		return false
	}
	word := binary.NativeEndian.Uint32(data)
	return len(data) == int(word&0xffffff) && (word == a.Version || slices.Contains(a.Older, word))
}

// Function is one C function that travels to the daemon.
type Function struct {
	// Name is the C function's.
	Name string
	Args []Arg

	method string
	// sizeQuery: with NULL for the array, the call succeeds and returns the count.
	sizeQuery bool
	// serve answers functions that do not map onto the method by its types.
	serve func(*call) nvml.Return
}

// receiver is the interface that has the function's method: the object behind
// the first argument if that is a handle, else the library.
func (f *Function) receiver() reflect.Type {
	if len(f.Args) == 0 || f.Args[0].Kind != Handle {
		return reflect.TypeFor[nvml.Interface]()
	}
	switch {
	case strings.HasPrefix(f.Name, "nvmlEventSet"):
		return reflect.TypeFor[nvml.EventSet]()
	case f.Name == "nvmlGpmSampleFree":
		return reflect.TypeFor[nvml.GpmSample]()
	case strings.HasPrefix(f.Name, "nvmlGpuInstance"):
		return reflect.TypeFor[nvml.GpuInstance]()
	case strings.HasPrefix(f.Name, "nvmlComputeInstance"):
		return reflect.TypeFor[nvml.ComputeInstance]()
	}
	return reflect.TypeFor[nvml.Device]()
}

// counts reports whether argument i only says how many elements another has.
func (f *Function) counts(i int) bool {
	for _, a := range f.Args {
		if a.IsMemory() && (a.Count == i || a.Count == CountAny && a.total == i) {
			return true
		}
	}
	return false
}
