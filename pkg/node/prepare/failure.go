package prepare

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/nvml"
)

// explained is an error that names its own remedy.
type explained struct{ error }

func (e explained) Unwrap() error { return e.error }

func explain(err error) error {
	if err == nil {
		return nil
	}
	return explained{err}
}

// advice is the remedy for an error on a GPU.
func advice(err error, uuid string) string {
	switch {
	case errors.Is(err, nvml.ErrInsufficientResources):
		return "a MIG instance that Mica did not make is in the way: destroy it, or delete the pod so that it is scheduled again"
	case errors.Is(err, nvml.ErrInUse):
		return "end the processes that still use it (nvidia-smi lists them); kubelet tries again"
	case errors.Is(err, nvml.ErrResetRequired), errors.Is(err, nvml.ErrNotSupported):
		return fmt.Sprintf("MIG was disabled on this GPU: enable it (nvidia-smi -i %s -mig 1) and reset the GPU", uuid)
	case errors.Is(err, nvml.ErrGPULost):
		return "the GPU does not answer any more: reset or replace it, and delete the pod so that it is scheduled again"
	default:
		return "see the kernel's log for messages of NVRM; kubelet tries again"
	}
}

// lost reports whether effects stay only because the GPU cannot be reached any more.
func lost(err error) bool { return errors.Is(err, nvml.ErrGPULost) }

// advised names the request in an error. It adds advice to NVML's own errors.
func advised(device journal.Device, err error) error {
	if answer, own := new(nvml.Error), (explained{}); !errors.As(err, &own) && errors.As(err, &answer) {
		err = fmt.Errorf("%w: %s", err, advice(err, device.UUID))
	}
	return fmt.Errorf("request %q: %w", device.Request, err)
}

// pauses are between two attempts to change a GPU.
var pauses = wait.Backoff{Duration: 20 * time.Millisecond, Factor: 2, Cap: time.Second, Steps: math.MaxInt}

// persist repeats what may succeed later until ctx ends. It always tries once: a budget
// that is used up must not keep an effect from being undone.
func persist(ctx context.Context, do func() error) error {
	var last error
	_ = pauses.DelayFunc().Until(ctx, true, true, func(context.Context) (bool, error) {
		last = do()
		passes := errors.Is(last, nvml.ErrInUse) || errors.Is(last, nvml.ErrTransient) || errors.Is(last, nvml.ErrRetraining)
		if passes {
			klog.FromContext(ctx).V(4).Info("Trying a change of a GPU again", "reason", last.Error())
		}
		return !passes, nil
	})
	return last
}
