// Package keeper owns a cluster's life as the machine sees it: one process
// that stays outside the sandbox, starts the sandbox's init, and removes what
// is left once that has ended. It never starts a component itself.
package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mica-gpu/mica/test/cluster/internal/layout"
	"github.com/mica-gpu/mica/test/cluster/internal/sandbox"
)

// Files are the descriptors that a keeper is started with, from 3 on.
type Files struct {
	// API is a listening socket of the machine's network namespace.
	API *os.File
	// Progress is a pipe to which the supervisor writes its progress.
	Progress *os.File
	// Lock is the cluster's, already held: it is released when the keeper
	// ends, however it does.
	Lock *os.File
	// Lifeline is a pipe that ends when the launcher is gone, and with
	// it the reason for a private cluster. The last one, because it is nil
	// for others.
	Lifeline *os.File
}

// Inherit opens the descriptors in a keeper.
func Inherit(private bool) Files {
	files := Files{API: inherited(3, "api"), Progress: inherited(4, "progress"), Lock: inherited(5, "lock")}
	if private {
		files.Lifeline = inherited(6, "lifeline")
	}
	return files
}

// List is the order in which a launcher passes them on.
func (f Files) List() []*os.File {
	list := []*os.File{f.API, f.Progress, f.Lock}
	if f.Lifeline != nil {
		list = append(list, f.Lifeline)
	}
	return list
}

// supervisors are the descriptors that reach the supervisor.
func (f Files) supervisors() []*os.File { return []*os.File{f.API, f.Progress} }

// InheritedBySupervisor opens the descriptors in init and the supervisor.
func InheritedBySupervisor() (api, progress *os.File) {
	return inherited(3, "api"), inherited(4, "progress")
}

// inherited opens a descriptor that this process was started with, and keeps it
// from those that this one starts: they would hold the lock and the pipes open.
func inherited(fd int, name string) *os.File {
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), name)
}

// Keep is the life of the keeper: it runs argv as the init of the cluster's
// sandbox until that ends, a signal says so, or the launcher is gone.
func Keep(ctx context.Context, dir layout.Dir, argv []string, files Files) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	defer files.Lock.Close()
	if err := writePID(dir.Lock(), os.Getpid()); err != nil {
		return err
	}
	orphaned := watchLifeline(files.Lifeline)
	context.AfterFunc(orphaned, stop)
	runErr := makeCgroup(dir)
	if runErr == nil {
		runErr = runInit(ctx, dir, argv, files)
	}
	if runErr != nil && orphaned.Err() == nil {
		// The reason and the logs stay for the user.
		return errors.Join(runErr, clean(dir, dir.Logs(), dir.Failure()))
	}
	return errors.Join(runErr, clean(dir))
}

// makeCgroup makes the cluster's cgroup and a note that it has.
func makeCgroup(dir layout.Dir) error {
	if err := sandbox.CreateCgroup(dir.Cgroup()); err != nil {
		return err
	}
	if err := os.WriteFile(dir.CgroupMade(), []byte(dir.Cgroup()+"\n"), 0o644); err != nil {
		return errors.Join(fmt.Errorf("noting the cluster's cgroup: %w", err), sandbox.RemoveCgroup(dir.Cgroup()))
	}
	return nil
}

// watchLifeline returns a context that ends when the pipe's writer does; never
// without a pipe.
func watchLifeline(pipe *os.File) context.Context {
	if pipe == nil {
		return context.Background()
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		// Nothing is ever written: any return is the end.
		_, _ = pipe.Read(make([]byte, 1))
		cancel()
	}()
	return ctx
}

// grace is how long the sandbox is given to end by itself.
const grace = 10 * time.Second

// runInit starts the sandbox's init and waits for its end. An end that was
// asked for is no error.
func runInit(ctx context.Context, dir layout.Dir, argv []string, files Files) error {
	// Init dies with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = files.supervisors()
	cmd.SysProcAttr = sandbox.Attributes()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = grace
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the cluster's sandbox: %w", err)
	}
	if err := writePID(dir.PID(), cmd.Process.Pid); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	for _, file := range files.supervisors() {
		file.Close()
	}
	err := cmd.Wait()
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the cluster's sandbox ended: %w", err)
	}
	return nil
}
