// Package process owns a child process with a log file: its start, its end and
// the last lines that it wrote. It decides nothing about what an end means.
package process

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Command is what to run.
type Command struct {
	// Name is the component's, for messages and its log.
	Name string
	Path string
	Args []string
	// Env is added to this process's own.
	Env []string
	// Log receives standard output and error; it is appended to.
	Log string
}

// Process is a started command.
type Process struct {
	Command Command
	Started time.Time

	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Start runs a command.
func Start(command Command) (*Process, error) {
	log, err := os.OpenFile(command.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", command.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(command.Path, command.Args...)
	cmd.Env = append(os.Environ(), command.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", command.Name, err)
	}
	p := &Process{Command: command, Started: time.Now(), cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// PID is the process's ID in this namespace.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill kills the process and waits for its end.
func (p *Process) Kill() {
	// It may have ended by itself: then there is nothing to kill.
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Ending describes how the process ended, with the last lines of its log.
func (p *Process) Ending() string {
	<-p.done
	return fmt.Sprintf("%s ended after %s (%s); the last lines of %s are:\n%s",
		p.Command.Name, time.Since(p.Started).Round(time.Millisecond), p.cmd.ProcessState, p.Command.Log, Tail(p.Command.Log, 15))
}

// Tail returns the last lines of a file, indented, or why it has none.
func Tail(path string, count int) string {
	const most = 64 << 10
	file, err := os.Open(path)
	if err != nil {
		return "  (" + err.Error() + ")"
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > most {
		if _, err := file.Seek(-most, io.SeekEnd); err != nil {
			return "  (" + err.Error() + ")"
		}
	}
	data, err := io.ReadAll(file)
	if err != nil {
		return "  (" + err.Error() + ")"
	}
	lines := bytes.Split(bytes.TrimRight(data, "\n"), []byte("\n"))
	if len(lines) > count {
		lines = lines[len(lines)-count:]
	}
	var text strings.Builder
	for _, line := range lines {
		fmt.Fprintf(&text, "  %s\n", line)
	}
	return strings.TrimRight(text.String(), "\n")
}
