package keeper

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// mark identifies a process, also among those that get its ID later, even after a
// reboot.
type mark struct {
	pid int
	// started is when, in clock ticks since the boot (proc_pid_stat(5)).
	started uint64
	// boot is the kernel's random ID of the boot (random(4)).
	boot string
}

// markOf looks a process up. It fails with fs.ErrNotExist when there is none.
func markOf(pid int) (mark, error) {
	started, _, err := stat(pid)
	if err != nil {
		return mark{}, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return mark{}, fmt.Errorf("reading the boot's ID: %w", err)
	}
	return mark{pid: pid, started: started, boot: strings.TrimSpace(string(boot))}, nil
}

// stat returns when a process was started and its state, as a letter.
func stat(pid int) (started uint64, state string, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		// A process that ends while it is read is ESRCH.
		if errors.Is(err, syscall.ESRCH) {
			err = fs.ErrNotExist
		}
		return 0, "", fmt.Errorf("looking process %d up: %w", pid, err)
	}
	// The second field, the program's name, may hold anything, also ")".
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return 0, "", fmt.Errorf("looking process %d up: its status %q is too short", pid, data)
	}
	if _, err := fmt.Sscan(fields[19], &started); err != nil {
		return 0, "", fmt.Errorf("looking process %d up: it was started at %q: %w", pid, fields[19], err)
	}
	return started, fields[0], nil
}

// alive reports whether the process runs: one that only waits for its parent does
// not.
func (m mark) alive() bool {
	now, err := markOf(m.pid)
	if err != nil || now != m {
		return false
	}
	_, state, err := stat(m.pid)
	return err == nil && state != "Z" && state != "X"
}

// signal sends the process a signal. One that is gone needs none, and one that
// has got its ID gets none.
func (m mark) signal(signal syscall.Signal) error {
	if !m.alive() {
		return nil
	}
	if err := syscall.Kill(m.pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// readMark returns the zero mark when none is there.
func readMark(path string) (mark, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && len(data) == 0) {
		return mark{}, nil
	}
	if err != nil {
		return mark{}, fmt.Errorf("reading which process is the cluster's: %w", err)
	}
	var m mark
	if _, err := fmt.Sscan(string(data), &m.pid, &m.started, &m.boot); err != nil || m.pid <= 1 {
		return mark{}, fmt.Errorf("%s holds %q, which identifies no process: end the cluster's processes, if there are any, and remove the file", path, data)
	}
	return m, nil
}

func writeMark(path string, m mark) error {
	if err := os.WriteFile(path, fmt.Appendf(nil, "%d %d %s\n", m.pid, m.started, m.boot), 0o644); err != nil {
		return fmt.Errorf("writing which process is the cluster's: %w", err)
	}
	return nil
}

// writePID writes the mark of a process.
func writePID(path string, pid int) error {
	m, err := markOf(pid)
	if err != nil {
		return err
	}
	return writeMark(path, m)
}
