package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"reflect"
	"time"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// controlRequest is one control call as JSON in a frame: a method of model.Control and its
// arguments. The answer is a controlReply.
type controlRequest struct {
	Method    string            `json:"method"`
	Arguments []json.RawMessage `json:"arguments,omitempty"`
}

// controlReply has the method's result, if it has one beside the error.
type controlReply struct {
	Error  string          `json:"error,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
}

func serveControl(conn net.Conn, control model.Control) error {
	for {
		frame, err := readFrame(conn)
		if err != nil {
			return err
		}
		var reply controlReply
		if reply.Result, err = carryOut(frame, control); err != nil {
			reply.Error = err.Error()
		}
		raw, err := json.Marshal(reply)
		if err != nil {
			return fmt.Errorf("encode a control answer: %w", err)
		}
		if err := writeFrame(conn, raw); err != nil {
			return err
		}
	}
}

// carryOut calls the method that the frame names and returns its result. The last result of
// every method of model.Control is an error.
func carryOut(frame []byte, control model.Control) (json.RawMessage, error) {
	var request controlRequest
	if err := json.Unmarshal(frame, &request); err != nil {
		return nil, fmt.Errorf("read the control call: %w", err)
	}
	method, known := reflect.TypeFor[model.Control]().MethodByName(request.Method)
	if !known || method.Type.NumIn() != len(request.Arguments) {
		return nil, fmt.Errorf("the simulator has no control call %q with %d arguments", request.Method, len(request.Arguments))
	}
	arguments := make([]reflect.Value, len(request.Arguments))
	for i, raw := range request.Arguments {
		argument := reflect.New(method.Type.In(i))
		decoder := json.NewDecoder(bytes.NewReader(raw))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(argument.Interface()); err != nil {
			return nil, fmt.Errorf("read argument %d of the control call %s: %w", i, request.Method, err)
		}
		arguments[i] = argument.Elem()
	}
	results := reflect.ValueOf(control).MethodByName(request.Method).Call(arguments)
	last := len(results) - 1
	if err, failed := results[last].Interface().(error); failed {
		return nil, err
	}
	if last == 0 {
		return nil, nil
	}
	return json.Marshal(results[0].Interface())
}

// Client is the control client of a daemon. It implements model.Control and
// connects anew for every call.
type Client struct {
	// Socket is the path that the daemon listens on.
	Socket string
}

var _ model.Control = Client{}

// controlTimeout bounds a control call. It leaves the simulator time to say what
// it waited for in vain.
const controlTimeout = model.ControlPatience + 5*time.Second

// call carries out a method and reads its result into result, which is nil for a method
// without one.
func (c Client) call(result any, method string, arguments ...any) error {
	request := controlRequest{Method: method}
	for _, argument := range arguments {
		raw, err := json.Marshal(argument)
		if err != nil {
			return fmt.Errorf("encode the control call: %w", err)
		}
		request.Arguments = append(request.Arguments, raw)
	}
	raw, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("encode the control call: %w", err)
	}
	answer, err := c.exchange(raw)
	if err != nil {
		return err
	}
	var reply controlReply
	if err := json.Unmarshal(answer, &reply); err != nil {
		return fmt.Errorf("read the simulator's answer: %w", err)
	}
	if reply.Error != "" {
		return errors.New(reply.Error)
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(reply.Result, result); err != nil {
		return fmt.Errorf("read the simulator's answer to %s: %w", method, err)
	}
	return nil
}

// exchange sends a frame and returns the one that answers it.
func (c Client) exchange(frame []byte) ([]byte, error) {
	conn, err := net.Dial("unix", c.Socket)
	if err != nil {
		return nil, fmt.Errorf("no simulator answers on %s: start it with nvml-sim serve, or name its socket: %w", c.Socket, err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(controlTimeout)); err != nil {
		return nil, err
	}
	var answer []byte
	if err = writeFrame(conn, []byte(controlMagic)); err == nil {
		if err = writeFrame(conn, frame); err == nil {
			answer, err = readFrame(conn)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the simulator on %s did not answer the control call; "+
			"it takes them on its own socket only, not on the one for containers: %w", c.Socket, err)
	}
	return answer, nil
}

// Inject implements model.Control.
func (c Client) Inject(e model.Event) error { return c.call(nil, "Inject", e) }

// Lose implements model.Control.
func (c Client) Lose(gpu int) error { return c.call(nil, "Lose", gpu) }

// Return implements model.Control.
func (c Client) Return(gpu int) error { return c.call(nil, "Return", gpu) }

// Attach implements model.Control.
func (c Client) Attach(gpu int) error { return c.call(nil, "Attach", gpu) }

// Detach implements model.Control.
func (c Client) Detach(gpu int) error { return c.call(nil, "Detach", gpu) }

// SetDriver implements model.Control.
func (c Client) SetDriver(change model.Driver) error { return c.call(nil, "SetDriver", change) }

// SetFabric implements model.Control.
func (c Client) SetFabric(state model.Fabric) error { return c.call(nil, "SetFabric", state) }

// SetCondition implements model.Control.
func (c Client) SetCondition(gpu int, condition model.Condition) error {
	return c.call(nil, "SetCondition", gpu, condition)
}

// SetLatency implements model.Control.
func (c Client) SetLatency(function string, latency time.Duration) error {
	return c.call(nil, "SetLatency", function, latency)
}

// SetLatencyAfter implements model.Control.
func (c Client) SetLatencyAfter(function string, latency time.Duration) error {
	return c.call(nil, "SetLatencyAfter", function, latency)
}

// Stall implements model.Control.
func (c Client) Stall(duration time.Duration) error { return c.call(nil, "Stall", duration) }

// Fail implements model.Control.
func (c Client) Fail(f model.Failure) error { return c.call(nil, "Fail", f) }

// Clear implements model.Control.
func (c Client) Clear() error { return c.call(nil, "Clear") }

// SetMIGMode implements model.Control.
func (c Client) SetMIGMode(gpu int, enabled bool) error {
	return c.call(nil, "SetMIGMode", gpu, enabled)
}

// CreateInstance implements model.Control.
func (c Client) CreateInstance(gpu int, profile string, start *int) (created model.InstanceState, err error) {
	err = c.call(&created, "CreateInstance", gpu, profile, start)
	return created, err
}

// DestroyInstance implements model.Control.
func (c Client) DestroyInstance(gpu, instance int) error {
	return c.call(nil, "DestroyInstance", gpu, instance)
}

// Occupy implements model.Control.
func (c Client) Occupy(gpu int, instance *int, inUse bool) error {
	return c.call(nil, "Occupy", gpu, instance, inUse)
}

// SetUse implements model.Control.
func (c Client) SetUse(gpu int, instance *int, use model.Use) error {
	return c.call(nil, "SetUse", gpu, instance, use)
}

// Reset implements model.Control.
func (c Client) Reset(gpu int) error { return c.call(nil, "Reset", gpu) }

// Reboot implements model.Control.
func (c Client) Reboot() error { return c.call(nil, "Reboot") }

// State implements model.Control.
func (c Client) State() (state model.State, err error) {
	err = c.call(&state, "State")
	return state, err
}
