package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Driver is what of the NVIDIA driver a machine has: each field is a version, or
// NoDriver. The zero value leaves as it is what there is.
type Driver struct {
	// Library is the version of the libraries and tools in the driver root.
	Library string `json:"library,omitempty"`
	// Module is the version of the kernel module. While it is another than that of the
	// library that a client has loaded, nvmlInit answers LIB_RM_VERSION_MISMATCH ("RM
	// detects a driver/library version mismatch", nvml.h), as after the upgrade of a
	// package that a reboot has not followed. Without a module it answers
	// DRIVER_NOT_LOADED (nvml.h).
	Module string `json:"module,omitempty"`
}

// NoDriver is the version of what is not there.
const NoDriver = "none"

func (d Driver) validate() error {
	var errs []error
	for field, version := range map[string]string{"library": d.Library, "module": d.Module} {
		if version != "" && version != NoDriver && !driverVersionPattern.MatchString(version) {
			errs = append(errs, fmt.Errorf("driver.%s %q is neither %q nor a version like 580.95.05", field, version, NoDriver))
		}
	}
	return errors.Join(errs...)
}

// or fills what d leaves open.
func (d Driver) or(other Driver) Driver {
	return Driver{Library: cmp.Or(d.Library, other.Library), Module: cmp.Or(d.Module, other.Module)}
}

// SetDriver implements Control.
func (m *Machine) SetDriver(change Driver) error {
	if err := change.validate(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), ControlPatience)
	defer cancel()
	release, err := m.reserveAll(ctx)
	if err != nil {
		return err
	}
	defer release()
	reloaded, err := m.replaceDriver(change)
	if err != nil || !reloaded {
		return err
	}
	m.restartGPUs()
	return nil
}

// replaceDriver reports whether the kernel module was unloaded or loaded. Unloading it
// needs that no process has it open: rmmod fails while a process has initialised NVML or
// computes (NVIDIA/gpu-driver-container #869, NVIDIA/gpu-operator #2570).
func (m *Machine) replaceDriver(change Driver) (reloaded bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := change.or(m.driver)
	reloaded = next.Module != m.driver.Module
	if users := m.moduleUsers(); reloaded && m.driver.Module != NoDriver && users > 0 {
		return false, fmt.Errorf("module nvidia %s of machine %q is in use by %d processes and cannot be unloaded: end them first",
			m.driver.Module, m.file.Name, users)
	}
	m.driver = next
	for _, changed := range m.driverWatchers {
		changed(next, change.Library != "")
	}
	return reloaded, nil
}

// moduleUsers counts the processes that have the kernel module open. It is called
// with Machine.mu held.
func (m *Machine) moduleUsers() int {
	users := len(m.contexts)
	for s := range m.sessions {
		if s.inits > 0 {
			users++
		}
	}
	for _, g := range m.gpus {
		if g.occupied {
			users++
		}
	}
	return users
}

// WatchDriver calls changed after a change of the driver and before SetDriver returns;
// installed says that the libraries were installed or removed. It must not call the
// machine's methods.
func (m *Machine) WatchDriver(changed func(now Driver, installed bool)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.driverWatchers = append(m.driverWatchers, changed)
}

// Driver returns what of the driver the machine has.
func (m *Machine) Driver() Driver {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.driver
}

// LibraryVersion says which driver the process's library is of; unknown unless it is said.
func LibraryVersion(version string) SessionOption {
	return func(s *Session) { s.library = version }
}

// meetsModule says how nvmlInit fails for want of a kernel module that fits. It is
// called with Machine.mu held.
func (s *Session) meetsModule() nvml.Return {
	switch module := s.machine.driver.Module; {
	case module == NoDriver:
		return nvml.ERROR_DRIVER_NOT_LOADED
	case s.library != "" && s.library != module:
		return nvml.ERROR_LIB_RM_VERSION_MISMATCH
	}
	return nvml.SUCCESS
}
