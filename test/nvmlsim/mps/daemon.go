package mps

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Texts of the real program.
var (
	ErrNotFound = errors.New("Cannot find MPS control daemon process")        //nolint:staticcheck // the real program's words
	ErrRunning  = errors.New("An instance of this daemon is already running") //nolint:staticcheck // the real program's words
)

// Options are how a daemon is started.
type Options struct {
	// PipeDirectory and LogDirectory are made if they are missing, but not their parents.
	PipeDirectory, LogDirectory string
	// MultiUser lets clients of all users share one server, which is root's.
	MultiUser bool
	// MemoryLimit and ThreadPercentage are the environment's, for clients that have none.
	MemoryLimit, ThreadPercentage string
}

// Daemon is a control daemon.
type Daemon struct {
	options   Options
	lock      *os.File
	listener  *net.UnixListener
	control   *journal
	serverLog *journal
	stopped   chan struct{}
	// answering counts the answers that are under way.
	answering sync.WaitGroup

	mu       sync.Mutex
	defaults limits
	// server is the only one: users take turns.
	server   *server
	waiting  []*client
	stopping bool
	// quitting: it takes no client any more but lets those it has finish.
	quitting bool
}

func (o Options) socket() string  { return filepath.Join(o.PipeDirectory, "control") }
func (o Options) pidFile() string { return filepath.Join(o.PipeDirectory, ControlName+".pid") }

// Start makes a daemon that listens in the pipe directory; Run lets it work. ErrRunning
// says that another one does.
func Start(o Options) (*Daemon, error) {
	defaults, err := parseLimits(o.MemoryLimit, o.ThreadPercentage)
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{o.PipeDirectory, o.LogDirectory} {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
	}
	d := &Daemon{options: o, defaults: defaults, stopped: make(chan struct{})}
	if d.lock, err = os.OpenFile(filepath.Join(o.PipeDirectory, "control_lock"), os.O_CREATE|os.O_RDWR, 0o666); err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(d.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		d.lock.Close()
		return nil, ErrRunning
	}
	if err := d.open(); err != nil {
		d.lock.Close()
		return nil, err
	}
	return d, nil
}

func (d *Daemon) open() (err error) {
	if d.control, err = openJournal(d.options.LogDirectory, "control.log"); err != nil {
		return err
	}
	if d.serverLog, err = openJournal(d.options.LogDirectory, "server.log"); err != nil {
		return err
	}
	// The lock is ours: no daemon needs what another one left.
	if err := os.Remove(d.options.socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := syscall.Mkfifo(filepath.Join(d.options.PipeDirectory, "log"), 0o666); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	d.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: d.options.socket(), Net: "unix"})
	if errors.Is(err, syscall.EINVAL) {
		// The path is longer than a socket's may be, which the real daemon puts so.
		return ErrNotFound
	}
	if err != nil {
		return err
	}
	if err := os.Chmod(d.options.socket(), 0o666); err != nil {
		return err
	}
	if err := os.WriteFile(d.options.pidFile(), fmt.Appendln(nil, os.Getpid()), 0o644); err != nil {
		return err
	}
	d.say("Starting control daemon using socket %s", d.options.socket())
	d.say("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=%s", d.options.PipeDirectory)
	return nil
}

func (d *Daemon) say(format string, arguments ...any) {
	d.control.say("Control", os.Getpid(), format, arguments...)
}

// Run serves front ends and clients until a front end quits the daemon.
func (d *Daemon) Run() {
	for {
		conn, err := d.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			// Others may go and give back what ran out.
			time.Sleep(100 * time.Millisecond)
			continue
		}
		d.say("Accepting connection...")
		go d.converse(conn)
	}
	<-d.stopped
	d.answering.Wait()
}

// Stop ends the daemon and everything that is connected to it. It may be called more
// than once.
func (d *Daemon) Stop() {
	d.mu.Lock()
	if d.stopping {
		d.mu.Unlock()
		<-d.stopped
		return
	}
	d.stopping = true
	server := d.server
	if server != nil {
		d.disconnectAll(server)
		server.input.Close()
	}
	d.rejectWaiting("CUDA_ERROR_MPS_CONNECTION_FAILED: the control daemon ends")
	d.mu.Unlock()
	if server != nil {
		<-server.exited
	}
	d.say("Exit")
	d.listener.Close() // removes the socket
	os.Remove(d.options.pidFile())
	d.lock.Close()
	close(d.stopped)
}

func (d *Daemon) converse(conn *net.UnixConn) {
	defer conn.Close()
	peer, err := peerOf(conn)
	if err != nil {
		d.say("User did not send valid credentials")
		return
	}
	c := &client{conn: conn, pid: int(peer.Pid), uid: peer.Uid, admitted: make(chan struct{})}
	// A peer that goes is noticed whatever it waits for.
	lines := make(chan []byte)
	answered := make(chan struct{})
	defer close(answered)
	go func() {
		defer close(lines)
		defer d.leave(c)
		for scanner := bufio.NewScanner(conn); scanner.Scan(); {
			select {
			case lines <- bytes.Clone(scanner.Bytes()):
			case <-answered:
				return
			}
		}
	}()
	for line := range lines {
		var request Request
		if err := json.Unmarshal(line, &request); err != nil {
			d.say("Unable to read new connection type information")
			return
		}
		if !d.serve(c, request) {
			return
		}
	}
}

// serve answers a request and reports whether there may be more.
func (d *Daemon) serve(c *client, request Request) bool {
	d.answering.Add(1)
	defer d.answering.Done()
	reply, more := d.answer(c, request)
	return c.send(reply) == nil && more
}

func (d *Daemon) answer(c *client, request Request) (reply Reply, more bool) {
	switch {
	case request.Command != nil:
		return d.answerFrontEnd(c, *request.Command), true
	case request.Connect != nil:
		reply = d.connect(c, *request.Connect)
		return reply, reply.Error == ""
	case request.Allocate != nil:
		return d.allocate(c, *request.Allocate), true
	}
	return Reply{Error: "CUDA_ERROR_INVALID_VALUE: the request asks for nothing"}, false
}

func peerOf(conn *net.UnixConn) (*syscall.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *syscall.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		peer, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	return peer, errors.Join(err, failed)
}
