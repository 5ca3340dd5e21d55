package main

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

	"github.com/spf13/cobra"

	"github.com/mica-gpu/mica/test/cluster/internal/keeper"
	"github.com/mica-gpu/mica/test/cluster/internal/launch"
	"github.com/mica-gpu/mica/test/cluster/internal/layout"
)

// exitStatus is an error that only says how this program shall exit: the
// command that it ran has said the rest.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func newRunCommand() *cobra.Command {
	options := launch.Options{Private: true}
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a command against a cluster of its own, which ends with it",
		Args:  cobra.MinimumNArgs(1),
	}
	gpu := hardwareFlags(cmd, &options)
	cmd.Flags().StringVar(&options.Logs, "logs", "", "a directory for the cluster's logs, which are gone with it otherwise")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := complete(cmd, &options, *gpu); err != nil {
			return err
		}
		if err := keeper.Sweep(layout.RunPrefix); err != nil {
			return err
		}
		var err error
		if options.Dir, err = keeper.Reserve(layout.RunPrefix); err != nil {
			return err
		}
		// The command's end may not be this thread's (PR_SET_PDEATHSIG).
		runtime.LockOSThread()
		return runPrivately(cmd.Context(), options, args)
	}
	return cmd
}

// runPrivately brings the cluster up, runs the command and takes the cluster
// down, whatever happens.
func runPrivately(ctx context.Context, options launch.Options, args []string) (err error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	cluster, err := startInterruptibly(ctx, options, signals)
	// Before the removal, which takes the logs along.
	defer func() { err = errors.Join(err, remove(cluster, options)) }()
	if err != nil {
		return err
	}
	tellLogs(options)
	command := exec.Command(args[0], args[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.Env = os.Environ()
	for _, variable := range cluster.Info.Environment() {
		command.Env = append(command.Env, variable.Name+"="+variable.Value)
	}
	command.Env = append(command.Env, "PATH="+cluster.Info.BinPath+":"+os.Getenv("PATH"))
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := command.Start(); err != nil {
		return fmt.Errorf("starting the command: %w", err)
	}
	return attend(command, cluster, options, signals)
}

// tellLogs says where to look while the command runs, and afterwards.
func tellLogs(options launch.Options) {
	afterwards := "gone with the cluster: --logs DIR keeps them"
	if options.Logs != "" {
		afterwards = "then in " + options.Logs
	}
	fmt.Fprintf(options.Progress, "logs are in %s, and %s\n", options.Dir.Logs(), afterwards)
}

// remove takes down what there is of the cluster, which is nil when it did not
// come up, after saving its logs.
func remove(cluster *launch.Cluster, options launch.Options) error {
	var errs []error
	if options.Logs != "" {
		errs = append(errs, launch.CopyLogs(options.Dir.Logs(), options.Logs))
	}
	if cluster != nil {
		return errors.Join(append(errs, cluster.End())...)
	}
	_, err := keeper.End(options.Dir)
	return errors.Join(append(errs, err)...)
}

// startInterruptibly is launch.Start, given up when a signal arrives.
func startInterruptibly(ctx context.Context, options launch.Options, signals <-chan os.Signal) (*launch.Cluster, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	started := make(chan struct{})
	defer close(started)
	go func() {
		select {
		case <-signals:
			cancel()
		case <-started:
		}
	}()
	return launch.Start(ctx, options)
}

// insistence is how long the command is given to end after a signal.
const insistence = 10 * time.Second

// attend waits for the command, passes signals on to it, and ends it when the
// cluster fails.
func attend(command *exec.Cmd, cluster *launch.Cluster, options launch.Options, signals <-chan os.Signal) error {
	done := make(chan error, 1)
	go func() { done <- command.Wait() }()
	var failure error
	var insist <-chan time.Time
	failed := cluster.Ended()
	for {
		select {
		case err := <-done:
			if failure != nil {
				return failure
			}
			return status(err)
		case received := <-signals:
			// The command may have ended already.
			_ = command.Process.Signal(received)
			insist = time.After(insistence)
		case <-failed:
			failed = nil
			failure = fmt.Errorf("the command was ended: %w", launch.Failure(options))
			_ = command.Process.Signal(syscall.SIGTERM)
			insist = time.After(insistence)
		case <-insist:
			_ = command.Process.Kill()
		}
	}
}

// status turns the command's end into this program's.
func status(err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	if wait, ok := exit.Sys().(syscall.WaitStatus); ok && wait.Signaled() {
		return exitStatus(128 + int(wait.Signal()))
	}
	return exitStatus(exit.ExitCode())
}
