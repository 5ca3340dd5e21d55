// Package timeslice sets how long the processes that share a GPU run before the
// next one may. NVML has no call for it, so it runs the driver's nvidia-smi. It
// never decides which GPU is shared.
package timeslice

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/driverroot"
)

// errNotSupported: this GPU, as it is configured now, has no time-slice to set. It
// is a kind of errors.ErrUnsupported.
var errNotSupported error = notSupported{}

type notSupported struct{}

func (notSupported) Error() string        { return "the GPU does not support it" }
func (notSupported) Is(target error) bool { return target == errors.ErrUnsupported }

const (
	program = "nvidia-smi"
	// patience bounds a call.
	patience = 30 * time.Second
)

// Exit statuses of nvidia-smi, from the section RETURN VALUE of its manual page.
const (
	exitNotSupported   = 3
	exitNotImplemented = 13
)

// Setter sets time-slices with the nvidia-smi of an installed driver. It is safe
// for concurrent use.
type Setter struct{ tools *driverroot.Tools }

// NewSetter looks for nvidia-smi when a time-slice is set.
func NewSetter(tools *driverroot.Tools) *Setter { return &Setter{tools: tools} }

// Set gives the GPU a time-slice, which lasts until the next Set or until the kernel driver lets
// go of the GPU. The error is errors.ErrUnsupported if the GPU has none, as before Volta and
// with MIG.
func (s *Setter) Set(ctx context.Context, uuid string, interval gpu.Interval) error {
	if err := s.set(ctx, uuid, interval); err != nil {
		return fmt.Errorf("set the time-slice of GPU %s to %s: %w", uuid, interval, err)
	}
	return nil
}

func (s *Setter) set(ctx context.Context, uuid string, interval gpu.Interval) error {
	number := slices.Index(gpu.Intervals, interval)
	if number < 0 {
		return fmt.Errorf("no such interval: use one of %v", gpu.Intervals)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	path, printed, err := s.tools.Run(ctx, program, "compute-policy", "-i", uuid, "--set-timeslice", strconv.Itoa(number))
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		return err
	}
	return judge(path, err, printed)
}

// judge reads the answer. A refusal may come with any exit status, so it reads the text, too.
func judge(path string, err error, output string) error {
	printed := driverroot.Said(output, 1)
	if printed == "" {
		printed = "nothing"
	}
	var exit *exec.ExitError
	code := 0
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	switch {
	case code == exitNotSupported, code == exitNotImplemented, strings.Contains(strings.ToLower(output), "not supported"):
		return fmt.Errorf("%w: %s printed %q: offer its shares with the interval %s", errNotSupported, path, printed, gpu.DefaultInterval)
	case err != nil:
		return fmt.Errorf("run %s: %w: it printed %q", path, err, printed)
	}
	return nil
}
