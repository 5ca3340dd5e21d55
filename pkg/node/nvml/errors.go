package nvml

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Sentinels for callers. An error of this package matches at most one of them with errors.Is.
var (
	// ErrLibrary means that libnvidia-ml.so.1 is absent or is not NVML.
	ErrLibrary = errors.New("no usable NVML library")
	// ErrReplaced means that the library's file was replaced or removed since this process loaded it. The
	// loader returns the old one while it is mapped, so only a new process can load the new one.
	ErrReplaced = errors.New("the NVML library was replaced")
	// ErrDriverNotLoaded means that the library is there but the kernel
	// driver does not answer; it may be loaded later.
	ErrDriverNotLoaded = errors.New("NVIDIA kernel driver is not loaded")
	// ErrNotSupported means that this GPU or driver has no such feature.
	ErrNotSupported = errors.New("not supported")
	// ErrNotFound means that NVML has no such device.
	ErrNotFound = errors.New("not found")
	// ErrGPULost means that the GPU fell off the bus, is otherwise inaccessible, or is no longer known to
	// the driver.
	ErrGPULost = errors.New("GPU is lost")
	// ErrSilent means that a call about a GPU does not return.
	ErrSilent = errors.New("the GPU does not answer")
	// ErrInUse means that a process, or something created from it, uses the object; it may be free later.
	ErrInUse = errors.New("in use")
	// ErrInsufficientResources means that something else occupies what a
	// partition needs.
	ErrInsufficientResources = errors.New("insufficient resources")
	// ErrResetRequired means that a mode only changes with a reset of the GPU.
	ErrResetRequired = errors.New("a reset of the GPU is required")
	// ErrTransient means that the driver failed temporarily or for an unknown reason. The same call may
	// succeed later, and may have succeeded now.
	ErrTransient = errors.New("transient failure")
)

// Error is a failed NVML call. It matches the sentinel of its return code, if there is one.
type Error struct {
	// Call is what failed, such as "read UUID".
	Call string
	// Device is the GPU, such as "GPU 3" or its UUID; empty for calls to the driver as a whole.
	Device string
	// Return is NVML's answer.
	Return nvml.Return
	// unknownGPU: the object that was not found is the GPU itself.
	unknownGPU bool
}

// Error implements error.
func (e *Error) Error() string {
	if e.Device == "" {
		return fmt.Sprintf("%s: NVML answered %s", e.Call, e.Return)
	}
	return fmt.Sprintf("%s of %s: NVML answered %s", e.Call, e.Device, e.Return)
}

// Is matches the sentinels.
func (e *Error) Is(target error) bool {
	if e.unknownGPU {
		return target == ErrGPULost
	}
	switch e.Return {
	case nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return target == ErrLibrary
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return target == ErrDriverNotLoaded
	case nvml.ERROR_NOT_SUPPORTED:
		return target == ErrNotSupported
	case nvml.ERROR_NOT_FOUND:
		return target == ErrNotFound
	case nvml.ERROR_GPU_IS_LOST:
		return target == ErrGPULost
	case nvml.ERROR_IN_USE:
		return target == ErrInUse
	case nvml.ERROR_INSUFFICIENT_RESOURCES:
		return target == ErrInsufficientResources
	case nvml.ERROR_RESET_REQUIRED:
		return target == ErrResetRequired
	case nvml.ERROR_TIMEOUT, nvml.ERROR_UNKNOWN, nvml.ERROR_OPERATING_SYSTEM, nvml.ERROR_NOT_READY, nvml.ERROR_MEMORY:
		return target == ErrTransient
	}
	return false
}

// UnreadableError is that of a GPU that Discover leaves out.
type UnreadableError struct {
	// Index is the GPU's.
	Index int
	Err   error
}

// Error implements error.
func (e *UnreadableError) Error() string { return e.Err.Error() }

// Unwrap returns NVML's error.
func (e *UnreadableError) Unwrap() error { return e.Err }

// check turns an NVML return code into an error.
func check(ret nvml.Return, call, device string) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	return &Error{Call: call, Device: device, Return: ret}
}
