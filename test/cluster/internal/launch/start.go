package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/mica-gpu/mica/test/cluster/internal/keeper"
	"github.com/mica-gpu/mica/test/cluster/internal/supervisor"
)

// Cluster is one that this process started.
type Cluster struct {
	Info supervisor.Info

	keeper *exec.Cmd
	// lifeline is nil unless the cluster is private.
	lifeline *os.File
	ended    chan struct{}
}

// Start brings a cluster up and returns when its node takes pods. On an error
// nothing runs any more; the logs are still in the cluster's directory.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if err := options.Check(); err != nil {
		return nil, err
	}
	if err := options.checkMachine(ctx); err != nil {
		return nil, err
	}
	spec, err := options.spec(ctx)
	if err != nil {
		return nil, err
	}
	lock, err := keeper.Hold(options.Dir)
	if err != nil {
		return nil, fmt.Errorf("starting a cluster in %s: %w", options.Dir, err)
	}
	defer lock.Close()
	listener, port, err := listen()
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	spec.APIPort = port
	if err := spec.Save(); err != nil {
		return nil, err
	}
	cluster := &Cluster{ended: make(chan struct{})}
	progress, err := cluster.spawn(options, keeper.Files{API: listener, Lock: lock})
	if err != nil {
		return nil, err
	}
	defer progress.Close()
	if err := cluster.awaitReady(ctx, options, progress); err != nil {
		return nil, err
	}
	cluster.Info, err = supervisor.LoadInfo(options.Dir)
	return cluster, err
}

// listen opens the machine's side of the way to the API server.
func listen() (*os.File, int, error) {
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, 0, fmt.Errorf("opening a port on 127.0.0.1 for the API server: %w", err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	file, err := listener.File()
	if err != nil {
		return nil, 0, fmt.Errorf("opening a port on 127.0.0.1 for the API server: %w", err)
	}
	return file, port, nil
}

// spawn starts the keeper and returns the pipe on which progress arrives.
func (c *Cluster) spawn(options Options, files keeper.Files) (*os.File, error) {
	progress, progressEnd, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("starting the cluster's keeper: %w", err)
	}
	defer progressEnd.Close()
	files.Progress = progressEnd
	args := []string{"keep"}
	if options.Private {
		end, lifeline, err := os.Pipe()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("starting the cluster's keeper: %w", err), progress.Close())
		}
		defer end.Close()
		files.Lifeline, c.lifeline = end, lifeline
		args = append(args, "--private")
	}
	if err := os.MkdirAll(options.Dir.Logs(), 0o755); err != nil {
		return nil, errors.Join(fmt.Errorf("making the directory of logs: %w", err), progress.Close())
	}
	log, err := os.Create(options.Dir.Log("supervisor"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening the supervisor's log: %w", err), progress.Close())
	}
	defer log.Close()
	c.keeper = exec.Command(options.Executable, append(args, string(options.Dir))...)
	c.keeper.Dir = "/"
	c.keeper.Stdout, c.keeper.Stderr = log, log
	c.keeper.ExtraFiles = files.List()
	// A session of its own, so that a terminal's signals don't reach it.
	c.keeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.keeper.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the cluster's keeper: %w", err), progress.Close())
	}
	go func() {
		// How it ended is in its log and in the file of the failure.
		_ = c.keeper.Wait()
		close(c.ended)
	}()
	return progress, nil
}

// awaitReady passes progress on until the node takes pods. When ctx ends
// before, the cluster is taken down.
func (c *Cluster) awaitReady(ctx context.Context, options Options, progress *os.File) error {
	stop := context.AfterFunc(ctx, func() { c.signal() })
	defer stop()
	lines := bufio.NewScanner(progress)
	for lines.Scan() {
		if lines.Text() == supervisor.Ready {
			return nil
		}
		fmt.Fprintln(options.Progress, lines.Text())
	}
	<-c.ended
	if ctx.Err() != nil {
		_, err := keeper.End(options.Dir)
		return errors.Join(errors.New("interrupted while the cluster was starting"), err)
	}
	return Failure(options)
}

// Ended is closed when the cluster has gone.
func (c *Cluster) Ended() <-chan struct{} { return c.ended }

// signal asks the keeper to end.
func (c *Cluster) signal() {
	// It may have ended already, which is what is wanted.
	_ = c.keeper.Process.Signal(syscall.SIGTERM)
}

// End takes the cluster down and waits until nothing of it is left.
func (c *Cluster) End() error {
	c.signal()
	<-c.ended
	if c.lifeline != nil {
		c.lifeline.Close()
	}
	_, err := keeper.End(c.Info.Dir)
	return err
}

// logs says where a cluster's logs are once it has ended.
func (o Options) logs() string {
	switch {
	case !o.Private:
		return "all logs are in " + o.Dir.Logs()
	case o.Logs != "":
		return "all logs are in " + o.Logs
	}
	return "--logs DIR keeps all logs"
}

// Failure is the reason for which the cluster ended by itself.
func Failure(options Options) error {
	where := options.logs()
	for _, path := range []string{options.Dir.Failure(), options.Dir.Log("supervisor")} {
		// One may be missing or empty.
		if reason, err := os.ReadFile(path); err == nil && len(reason) > 0 {
			return fmt.Errorf("%s\n%s", strings.TrimSpace(string(reason)), where)
		}
	}
	return fmt.Errorf("the cluster ended and left no reason: its keeper was killed\n%s", where)
}
