package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// controlRequest is one control call as JSON in a frame: exactly one field is
// set. The answer is a controlReply.
type controlRequest struct {
	Inject     *model.Event        `json:"inject,omitempty"`
	Lose       *int                `json:"lose,omitempty"`
	Return     *int                `json:"return,omitempty"`
	Attach     *int                `json:"attach,omitempty"`
	Detach     *int                `json:"detach,omitempty"`
	Driver     *model.Driver       `json:"driver,omitempty"`
	Fabric     *model.Fabric       `json:"fabric,omitempty"`
	Condition  *conditionRequest   `json:"condition,omitempty"`
	SetLatency *model.LatencyState `json:"setLatency,omitempty"`
	Stall      *time.Duration      `json:"stall,omitempty"`
	Fail       *model.Failure      `json:"fail,omitempty"`
	Clear      *struct{}           `json:"clear,omitempty"`
	MIG        *migRequest         `json:"mig,omitempty"`
	Use        *useRequest         `json:"use,omitempty"`
	Reset      *int                `json:"reset,omitempty"`
	Reboot     *struct{}           `json:"reboot,omitempty"`
	State      *struct{}           `json:"state,omitempty"`
}

// conditionRequest is what a GPU is to say of its health.
type conditionRequest struct {
	GPU       int             `json:"gpu"`
	Condition model.Condition `json:"condition"`
}

// useRequest is the use of a GPU, or of one of its GPU instances.
type useRequest struct {
	GPU      int       `json:"gpu"`
	Instance *int      `json:"instance,omitempty"`
	Use      model.Use `json:"use"`
}

type controlReply struct {
	Error    string               `json:"error,omitempty"`
	State    *model.State         `json:"state,omitempty"`
	Instance *model.InstanceState `json:"instance,omitempty"`
}

func serveControl(conn net.Conn, control model.Control) error {
	for {
		frame, err := readFrame(conn)
		if err != nil {
			return err
		}
		var reply controlReply
		if request, err := decodeControl(frame); err != nil {
			reply.Error = err.Error()
		} else if reply, err = request.carryOut(control); err != nil {
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

func decodeControl(frame []byte) (controlRequest, error) {
	var request controlRequest
	decoder := json.NewDecoder(bytes.NewReader(frame))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&request); err != nil {
		return controlRequest{}, fmt.Errorf("the control call cannot be read: %w", err)
	}
	if decoder.More() {
		return controlRequest{}, errors.New("the control call is followed by more than it should be")
	}
	return request, nil
}

func (r controlRequest) carryOut(control model.Control) (reply controlReply, err error) {
	switch {
	case r.Inject != nil:
		err = control.Inject(*r.Inject)
	case r.Lose != nil:
		err = control.Lose(*r.Lose)
	case r.Return != nil:
		err = control.Return(*r.Return)
	case r.Attach != nil:
		err = control.Attach(*r.Attach)
	case r.Detach != nil:
		err = control.Detach(*r.Detach)
	case r.Driver != nil:
		err = control.SetDriver(*r.Driver)
	case r.Fabric != nil:
		err = control.SetFabric(*r.Fabric)
	case r.Condition != nil:
		err = control.SetCondition(r.Condition.GPU, r.Condition.Condition)
	case r.SetLatency != nil && r.SetLatency.After:
		err = control.SetLatencyAfter(r.SetLatency.Function, r.SetLatency.Latency)
	case r.SetLatency != nil:
		err = control.SetLatency(r.SetLatency.Function, r.SetLatency.Latency)
	case r.Stall != nil:
		err = control.Stall(*r.Stall)
	case r.Fail != nil:
		err = control.Fail(*r.Fail)
	case r.Clear != nil:
		err = control.Clear()
	case r.MIG != nil:
		reply.Instance, err = r.MIG.carryOut(control)
	case r.Use != nil:
		err = control.SetUse(r.Use.GPU, r.Use.Instance, r.Use.Use)
	case r.Reset != nil:
		err = control.Reset(*r.Reset)
	case r.Reboot != nil:
		err = control.Reboot()
	case r.State != nil:
		var state model.State
		state, err = control.State()
		reply.State = &state
	default:
		err = errors.New("the control call asks for nothing")
	}
	return reply, err
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

func (c Client) call(request controlRequest) (controlReply, error) {
	conn, err := net.Dial("unix", c.Socket)
	if err != nil {
		return controlReply{}, fmt.Errorf("no simulator answers on %s: start it with nvml-sim serve, or name its socket: %w", c.Socket, err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(controlTimeout)); err != nil {
		return controlReply{}, err
	}
	raw, err := json.Marshal(request)
	if err != nil {
		return controlReply{}, fmt.Errorf("encode the control call: %w", err)
	}
	var answer []byte
	if err = writeFrame(conn, []byte(controlMagic)); err == nil {
		if err = writeFrame(conn, raw); err == nil {
			answer, err = readFrame(conn)
		}
	}
	if err != nil {
		return controlReply{}, fmt.Errorf("the simulator on %s did not answer the control call; "+
			"it takes them on its own socket only, not on the one for containers: %w", c.Socket, err)
	}
	var reply controlReply
	if err := json.Unmarshal(answer, &reply); err != nil {
		return controlReply{}, fmt.Errorf("the simulator's answer cannot be read: %w", err)
	}
	if reply.Error != "" {
		return controlReply{}, errors.New(reply.Error)
	}
	return reply, nil
}

// Inject implements model.Control.
func (c Client) Inject(e model.Event) error { return c.do(controlRequest{Inject: &e}) }

// Lose implements model.Control.
func (c Client) Lose(gpu int) error { return c.do(controlRequest{Lose: &gpu}) }

// Return implements model.Control.
func (c Client) Return(gpu int) error { return c.do(controlRequest{Return: &gpu}) }

// Attach implements model.Control.
func (c Client) Attach(gpu int) error { return c.do(controlRequest{Attach: &gpu}) }

// Detach implements model.Control.
func (c Client) Detach(gpu int) error { return c.do(controlRequest{Detach: &gpu}) }

// SetDriver implements model.Control.
func (c Client) SetDriver(change model.Driver) error { return c.do(controlRequest{Driver: &change}) }

// SetFabric implements model.Control.
func (c Client) SetFabric(state model.Fabric) error { return c.do(controlRequest{Fabric: &state}) }

// SetCondition implements model.Control.
func (c Client) SetCondition(gpu int, condition model.Condition) error {
	return c.do(controlRequest{Condition: &conditionRequest{GPU: gpu, Condition: condition}})
}

// SetLatency implements model.Control.
func (c Client) SetLatency(function string, latency time.Duration) error {
	return c.do(controlRequest{SetLatency: &model.LatencyState{Function: function, Latency: latency}})
}

// SetLatencyAfter implements model.Control.
func (c Client) SetLatencyAfter(function string, latency time.Duration) error {
	return c.do(controlRequest{SetLatency: &model.LatencyState{Function: function, Latency: latency, After: true}})
}

// Stall implements model.Control.
func (c Client) Stall(duration time.Duration) error { return c.do(controlRequest{Stall: &duration}) }

// Fail implements model.Control.
func (c Client) Fail(f model.Failure) error { return c.do(controlRequest{Fail: &f}) }

// SetUse implements model.Control.
func (c Client) SetUse(gpu int, instance *int, use model.Use) error {
	return c.do(controlRequest{Use: &useRequest{GPU: gpu, Instance: instance, Use: use}})
}

// Clear implements model.Control.
func (c Client) Clear() error { return c.do(controlRequest{Clear: &struct{}{}}) }

// State implements model.Control.
func (c Client) State() (model.State, error) {
	reply, err := c.call(controlRequest{State: &struct{}{}})
	if err != nil {
		return model.State{}, err
	}
	if reply.State == nil {
		return model.State{}, fmt.Errorf("the simulator on %s did not say what its state is", c.Socket)
	}
	return *reply.State, nil
}

func (c Client) do(request controlRequest) error {
	_, err := c.call(request)
	return err
}
