package prepare

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/nvml"
)

// explained is an error that says itself what to do about it.
type explained struct{ error }

func (e explained) Unwrap() error { return e.error }

func explain(err error) error {
	if err == nil {
		return nil
	}
	return explained{err}
}

// advice is what to do about an error on a GPU.
func advice(err error, uuid string) string {
	switch {
	case errors.Is(err, nvml.ErrInsufficientResources):
		return "a MIG instance that somebody else made is in the way: destroy it, or delete the pod so that it is scheduled again"
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

// lost tells that effects stay only where the GPU cannot be reached any more.
func lost(err error) bool { return errors.Is(err, nvml.ErrGPULost) }

// inOneLine joins errors as a pod's event shows them.
func inOneLine(errs []error) error {
	var joined error
	for _, err := range errs {
		switch {
		case joined == nil:
			joined = err
		case err != nil:
			joined = fmt.Errorf("%w; %w", joined, err)
		}
	}
	return joined
}

// pauses are between two attempts to change a GPU.
var pauses = wait.Backoff{Duration: 20 * time.Millisecond, Factor: 2, Cap: time.Second, Steps: math.MaxInt}

// persist repeats what may succeed later until ctx ends. It tries once in any
// case: a budget that is used up must not keep an effect from being undone.
func persist(ctx context.Context, do func() error) error {
	var last error
	_ = pauses.DelayFunc().Until(ctx, true, true, func(context.Context) (bool, error) {
		last = do()
		passes := errors.Is(last, nvml.ErrInUse) || errors.Is(last, nvml.ErrTransient) || errors.Is(last, nvml.ErrRetraining)
		if passes {
			klog.FromContext(ctx).V(4).Info("A change of a GPU is tried again", "reason", last.Error())
		}
		return !passes, nil
	})
	return last // whose end was waited for in vain
}
