package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Attributes are those of a process that becomes the init of a new sandbox. It
// dies with the thread that starts it, which must therefore be locked
// (prctl(2), PR_SET_PDEATHSIG).
func Attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL,
	}
}

// Init is the life of the sandbox's first process: it runs argv with the given
// files as descriptors from 3 on, passes SIGTERM and SIGINT to it, reaps
// whatever the sandbox's processes leave, and once argv has ended kills all
// that is left. It returns argv's exit status.
func Init(argv []string, files []*os.File) (int, error) {
	if os.Getpid() != 1 {
		return 0, errors.New("this is not the first process of a sandbox: it is started by `cluster up` and `cluster run`")
	}
	if err := enter(); err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	child, err := os.StartProcess(argv[0], argv, &os.ProcAttr{
		Env:   os.Environ(),
		Files: append([]*os.File{nil, os.Stdout, os.Stderr}, files...),
	})
	if err != nil {
		return 0, fmt.Errorf("starting the supervisor: %w", err)
	}
	// Only init and its child decide how long these live.
	for _, file := range files {
		file.Close()
	}
	go func() {
		for received := range signals {
			// The child may have ended: then no process needs the signal.
			_ = child.Signal(received)
		}
	}()
	status, err := reapUntil(child.Pid)
	if err != nil {
		return 0, err
	}
	killAll()
	return status, nil
}

// reapUntil waits for every process that ends and returns when pid did.
func reapUntil(pid int) (int, error) {
	for {
		var status unix.WaitStatus
		ended, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("waiting for the supervisor: %w", err)
		case ended == pid && status.Signaled():
			return 128 + int(status.Signal()), nil
		case ended == pid:
			return status.ExitStatus(), nil
		}
	}
}

// killAll kills every other process of the sandbox and waits for their end.
func killAll() {
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		if err := unix.Kill(-1, unix.SIGKILL); errors.Is(err, unix.ESRCH) {
			return
		}
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if err != nil || pid <= 0 {
				break
			}
		}
		time.Sleep(2 * time.Millisecond)
	}
}
