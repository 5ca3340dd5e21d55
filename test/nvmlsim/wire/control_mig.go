package wire

import (
	"errors"
	"fmt"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// migRequest is a control call about the MIG instances of one GPU: exactly one
// of the other fields is set.
type migRequest struct {
	GPU int `json:"gpu"`
	// Enable is the MIG mode to set.
	Enable  *bool          `json:"enable,omitempty"`
	Create  *createRequest `json:"create,omitempty"`
	Destroy *int           `json:"destroy,omitempty"`
	Occupy  *occupyRequest `json:"occupy,omitempty"`
}

type createRequest struct {
	Profile string `json:"profile"`
	Start   *int   `json:"start,omitempty"`
}

type occupyRequest struct {
	Instance *int `json:"instance,omitempty"`
	InUse    bool `json:"inUse"`
}

func (r migRequest) carryOut(control model.Control) (*model.InstanceState, error) {
	switch {
	case r.Enable != nil:
		return nil, control.SetMIGMode(r.GPU, *r.Enable)
	case r.Create != nil:
		created, err := control.CreateInstance(r.GPU, r.Create.Profile, r.Create.Start)
		return &created, err
	case r.Destroy != nil:
		return nil, control.DestroyInstance(r.GPU, *r.Destroy)
	case r.Occupy != nil:
		return nil, control.Occupy(r.GPU, r.Occupy.Instance, r.Occupy.InUse)
	}
	return nil, errors.New("the control call asks for nothing about MIG")
}

// SetMIGMode implements model.Control.
func (c Client) SetMIGMode(gpu int, enabled bool) error {
	return c.do(controlRequest{MIG: &migRequest{GPU: gpu, Enable: &enabled}})
}

// CreateInstance implements model.Control.
func (c Client) CreateInstance(gpu int, profile string, start *int) (model.InstanceState, error) {
	reply, err := c.call(controlRequest{MIG: &migRequest{GPU: gpu, Create: &createRequest{Profile: profile, Start: start}}})
	if err != nil {
		return model.InstanceState{}, err
	}
	if reply.Instance == nil {
		return model.InstanceState{}, fmt.Errorf("the simulator on %s did not say what it created", c.Socket)
	}
	return *reply.Instance, nil
}

// DestroyInstance implements model.Control.
func (c Client) DestroyInstance(gpu, instance int) error {
	return c.do(controlRequest{MIG: &migRequest{GPU: gpu, Destroy: &instance}})
}

// Occupy implements model.Control.
func (c Client) Occupy(gpu int, instance *int, inUse bool) error {
	return c.do(controlRequest{MIG: &migRequest{GPU: gpu, Occupy: &occupyRequest{Instance: instance, InUse: inUse}}})
}

// Reset implements model.Control.
func (c Client) Reset(gpu int) error { return c.do(controlRequest{Reset: &gpu}) }

// Reboot implements model.Control.
func (c Client) Reboot() error { return c.do(controlRequest{Reboot: &struct{}{}}) }
