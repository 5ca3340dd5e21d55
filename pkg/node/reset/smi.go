package reset

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/mica-gpu/mica/pkg/node/driverroot"
)

const (
	program = "nvidia-smi"
	// patience bounds a reset. It is shorter than the timeout of a claim, which may wait for it.
	patience = 30 * time.Second
	// reasonLines are the lines of a refusal to keep: the last, with the reason and advice.
	reasonLines = 2
)

// Runner runs the NVIDIA driver's programs, as driverroot.Tools does.
type Runner interface {
	Run(ctx context.Context, program string, arguments ...string) (path, printed string, err error)
}

// SMI resets GPUs with the nvidia-smi of an installed driver.
type SMI struct{ runner Runner }

// NewSMI looks for nvidia-smi when a GPU is reset.
func NewSMI(runner Runner) SMI { return SMI{runner} }

// Reset implements Program. A function-level reset is the program's default.
func (s SMI) Reset(ctx context.Context, uuid string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	path, printed, err := s.runner.Run(ctx, program, "--gpu-reset", "-i", uuid)
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return fmt.Errorf("%s printed %q (%w)", path, driverroot.Said(printed, reasonLines), err)
	}
	return err
}
