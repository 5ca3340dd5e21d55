package wire

import (
	"encoding/binary"
	"reflect"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// call is one call of a client.
type call struct {
	session *session
	f       *Function
	args    []value
}

// serveCall carries out a call and fills the answers into its arguments.
func serveCall(c *call) nvml.Return {
	if opens := c.f.method == "Init"; !opens && !c.session.initialized() {
		return nvml.ERROR_UNINITIALIZED
	}
	if r := c.check(); r != nvml.SUCCESS {
		return r
	}
	if c.lacks() {
		return serveRefusal(c)
	}
	if c.f.serve != nil {
		return c.f.serve(c)
	}
	return c.invoke()
}

// lacks reports whether the call is on a device that does not have the function.
func (c *call) lacks() bool {
	if c.f.method == "" || c.f.receiver() != reflect.TypeFor[nvml.Device]() {
		return false
	}
	device, ok := c.device()
	return ok && !model.Answers(device, c.f.Name)
}

// check refuses NULL and structs of a version that is not modelled.
func (c *call) check() nvml.Return {
	for i, a := range c.f.Args {
		isText := a.Type == reflect.TypeFor[byte]()
		if !c.args[i].present && (a.Count == CountOne || isText) {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		if a.Kind == Versioned && !a.fits(c.args[i].data) {
			return nvml.ERROR_ARGUMENT_VERSION_MISMATCH
		}
	}
	return nvml.SUCCESS
}

// invoke calls the method that has the function's name and, if it succeeds,
// answers with its results.
func (c *call) invoke() nvml.Return {
	receiver, ok := c.receiver()
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	method := reflect.ValueOf(receiver).MethodByName(c.f.method)
	parameters, ok := c.parameters(method.Type())
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	results := method.Call(parameters)
	last := len(results) - 1
	if r := results[last].Interface().(nvml.Return); r != nvml.SUCCESS {
		return r
	}
	return c.answer(results[:last])
}

func (c *call) receiver() (any, bool) {
	of := c.f.receiver()
	if of == reflect.TypeFor[nvml.Interface]() {
		return c.session.library, true
	}
	return c.session.object(HandleWord(c.args[0].number), of)
}

// parameters makes the method's parameters from the arguments that go in, in
// their order, less the receiver and the counts of arrays.
func (c *call) parameters(method reflect.Type) ([]reflect.Value, bool) {
	var parameters []reflect.Value
	for i, a := range c.f.Args {
		isReceiver := i == 0 && a.Kind == Handle
		if isReceiver || c.f.counts(i) || a.isWritten() {
			continue
		}
		p, ok := c.parameter(i, method.In(len(parameters)))
		if !ok {
			return nil, false
		}
		parameters = append(parameters, p)
	}
	return parameters, true
}

func (c *call) parameter(i int, as reflect.Type) (reflect.Value, bool) {
	a, v := c.f.Args[i], c.args[i]
	switch {
	case a.Kind == Handle:
		object, ok := c.session.object(HandleWord(v.number), as)
		return reflect.ValueOf(object), ok
	case a.Kind == String:
		return reflect.ValueOf(v.text), true
	case a.Kind == In:
		return structFrom(v.data, as.Elem()), true
	case as == reflect.TypeFor[*nvml.GpuInstanceProfileInfo]():
		// C passes the profile's ID alone; the count keeps go-nvml's own
		// checks of the struct content.
		return reflect.ValueOf(&nvml.GpuInstanceProfileInfo{Id: uint32(v.number), InstanceCount: 1}), true
	case as == reflect.TypeFor[*nvml.ComputeInstanceProfileInfo]():
		return reflect.ValueOf(&nvml.ComputeInstanceProfileInfo{Id: uint32(v.number), InstanceCount: 1}), true
	case a.Kind == U32:
		// NVML's int arguments are signed; its unsigned ones fit either way.
		return reflect.ValueOf(int32(uint32(v.number))).Convert(as), true
	}
	return reflect.ValueOf(v.number).Convert(as), true
}

// answer turns the results into bytes for the arguments that go out, in their
// order, counts of arrays left out.
func (c *call) answer(results []reflect.Value) nvml.Return {
	for i, a := range c.f.Args {
		if !a.isWritten() || c.f.counts(i) {
			continue
		}
		result := results[0]
		results = results[1:]
		if r := c.answerOne(i, result); r != nvml.SUCCESS {
			return r
		}
	}
	return nvml.SUCCESS
}

func (c *call) answerOne(i int, result reflect.Value) nvml.Return {
	a, v := c.f.Args[i], &c.args[i]
	switch {
	case result.Kind() == reflect.String:
		if result.Len() >= v.room {
			return nvml.ERROR_INSUFFICIENT_SIZE
		}
		v.answer = append([]byte(result.String()), 0)
	case result.Kind() == reflect.Slice:
		return c.answerArray(i, result)
	case a.Kind == Versioned:
		v.answer = bytesOf(result)
		if len(v.answer) != v.room {
			return nvml.ERROR_ARGUMENT_VERSION_MISMATCH
		}
		copy(v.answer, v.data[:4])
	default:
		v.answer = c.element(a, result)
	}
	return nvml.SUCCESS
}

// answerArray follows NVML's protocol of an array with a count: the count
// always holds how many there are, the array is only written if all fit.
func (c *call) answerArray(i int, result reflect.Value) nvml.Return {
	a, v := c.f.Args[i], &c.args[i]
	count := a.Count
	if count == CountAny {
		count = a.total
	}
	if c.f.Args[count].isWritten() {
		c.args[count].answer = binary.NativeEndian.AppendUint32(nil, uint32(result.Len()))
	}
	if !v.present && c.f.sizeQuery {
		return nvml.SUCCESS
	}
	if result.Len()*a.Size > v.room {
		return nvml.ERROR_INSUFFICIENT_SIZE
	}
	for n := range result.Len() {
		v.answer = append(v.answer, c.element(a, result.Index(n))...)
	}
	return nvml.SUCCESS
}

// element is the C form of one result.
func (c *call) element(a Arg, result reflect.Value) []byte {
	switch result.Kind() {
	case reflect.Interface:
		return binary.NativeEndian.AppendUint64(nil, uint64(c.session.handleOf(result.Interface())))
	case reflect.Bool:
		if result.Bool() {
			return binary.NativeEndian.AppendUint32(nil, 1)
		}
		return binary.NativeEndian.AppendUint32(nil, 0)
	case reflect.Struct:
		return bytesOf(result)[:a.Size]
	}
	var n uint64
	if result.CanInt() {
		n = uint64(result.Int())
	} else {
		n = result.Uint()
	}
	if a.Size == 8 {
		return binary.NativeEndian.AppendUint64(nil, n)
	}
	return binary.NativeEndian.AppendUint32(nil, uint32(n))
}

// bytesOf and structFrom are the one place that relies on go-nvml's structs
// having the layout of C's; they hold no pointers, so bytes are all they are.
func bytesOf(v reflect.Value) []byte {
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	return unsafe.Slice((*byte)(p.UnsafePointer()), v.Type().Size())
}

// structFrom returns a pointer to a new struct with the given content.
func structFrom(data []byte, t reflect.Type) reflect.Value {
	p := reflect.New(t)
	copy(unsafe.Slice((*byte)(p.UnsafePointer()), t.Size()), data)
	return p
}
