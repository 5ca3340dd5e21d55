package mps

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/mica-gpu/mica/test/nvmlsim/process"
)

// Program names of the two roles.
const (
	ControlName = "nvidia-cuda-mps-control"
	ServerName  = "nvidia-cuda-mps-server"
)

// announcement is the line by which a server says that it is ready, or why not.
type announcement struct {
	Error        string           `json:"error,omitempty"`
	Devices      []process.Device `json:"devices,omitempty"`
	SharedMemory string           `json:"sharedMemory,omitempty"`
	Token        string           `json:"token,omitempty"`
}

// volta is the compute capability from which on a server has a context a client, and
// clients can be limited.
const volta = 7

// Serve is the server's process: it has contexts on the devices that are visible to
// it until its daemon goes, which shows at the end of in, or until they are lost.
func Serve(in io.Reader, out io.Writer) error {
	announced, contexts, err := prepareServer()
	if err != nil {
		announced.Error = err.Error()
	}
	if failed := json.NewEncoder(out).Encode(announced); failed != nil || err != nil {
		return errors.Join(err, failed)
	}
	defer contexts.Close()
	defer os.Remove(announced.SharedMemory)
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		_, _ = io.Copy(io.Discard, in)
		asked <- syscall.SIGTERM
	}()
	select {
	case <-asked:
		return nil
	case <-contexts.Lost():
		return errors.New("the server lost its contexts")
	}
}

func prepareServer() (announcement, *process.Contexts, error) {
	request := process.Request{Name: ServerName}
	if visible, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set {
		request.VisibleDevices = &visible
	}
	contexts, err := process.Open(process.Socket(), request)
	if err != nil {
		return announcement{}, nil, err
	}
	for _, d := range contexts.Devices {
		if d.ComputeCapability < volta {
			contexts.Close()
			return announcement{}, nil, fmt.Errorf("CUDA_ERROR_NOT_SUPPORTED: the simulator knows MPS from Volta on, and %s is older", d.UUID)
		}
	}
	path, token, err := shareMemory()
	if err != nil {
		contexts.Close()
		return announcement{}, nil, err
	}
	return announcement{Devices: contexts.Devices, SharedMemory: path, Token: token}, contexts, nil
}

// shareMemory makes the file that the server's clients must have, too.
func shareMemory() (path, token string, err error) {
	random := make([]byte, 8)
	if _, err := rand.Read(random); err != nil {
		return "", "", err
	}
	token = hex.EncodeToString(random)
	path = fmt.Sprintf("/dev/shm/cuda.shm.%x.%x.1", os.Getuid(), os.Getpid())
	if err := os.WriteFile(path, []byte(token), 0o644); err != nil {
		return "", "", fmt.Errorf("CUDA_ERROR_OPERATING_SYSTEM: %w", err)
	}
	return path, token, nil
}

// start starts a server for the user. It is called with Daemon.mu held.
func (d *Daemon) start(uid uint32) error {
	s, cmd, output, err := launch(uid)
	if err != nil {
		return err
	}
	s.limits = d.defaults.clone()
	d.server = s
	d.say("Starting new server %d for user %d", s.pid, uid)
	go d.supervise(s, cmd, output)
	return nil
}

// supervise hears what a server announces and waits for its end.
func (d *Daemon) supervise(s *server, cmd *exec.Cmd, output *bufio.Reader) {
	var said announcement
	if line, err := output.ReadBytes('\n'); err != nil {
		said.Error = "CUDA_ERROR_MPS_SERVER_NOT_READY: the server ended at once"
	} else if err := json.Unmarshal(line, &said); err != nil {
		said.Error = "CUDA_ERROR_MPS_SERVER_NOT_READY: " + err.Error()
	}
	d.mu.Lock()
	if said.Error != "" {
		s.failure = said.Error
		d.serverLog.say("Server", s.pid, "MPS server failed to start")
		d.serverLog.say("Server", s.pid, "%s", said.Error)
		d.rejectWaiting(said.Error)
	} else {
		s.announcement, s.used, s.ready = said, make([]uint64, len(said.Devices)), true
		d.say("NEW SERVER %d: Ready", s.pid)
		d.serverLog.say("Server", s.pid, "Active Threads Percentage set to %s", printPercentage(s.limits.percentage))
		d.serverLog.say("Server", s.pid, "Server has started")
	}
	close(s.started)
	d.advance()
	d.mu.Unlock()
	_, _ = io.Copy(io.Discard, output)
	_ = cmd.Wait() // how it ended is in its state
	d.mu.Lock()
	defer d.mu.Unlock()
	d.say("Server %d exited with status %d", s.pid, cmd.ProcessState.ExitCode())
	os.Remove(s.SharedMemory) // there is one only if it was killed
	d.disconnectAll(s)
	d.server = nil
	close(s.exited)
	d.advance()
}

// disconnectAll breaks the connections of a server's clients.
func (d *Daemon) disconnectAll(s *server) {
	for _, c := range s.clientsInOrder() {
		d.detach(c)
		c.conn.Close()
	}
}

// end lets a server end. It is called with Daemon.mu held.
func (d *Daemon) end(s *server) {
	s.draining = true
	s.input.Close()
}

// server is a server as its daemon sees it. Daemon.mu guards the mutable fields.
type server struct {
	pid int
	uid uint32
	// input ends the process when it is closed.
	input io.Closer

	ready bool
	// draining: it takes no more clients and ends with the last.
	draining bool
	announcement
	// failure says why it could not start.
	failure string
	limits  limits
	used    []uint64
	clients map[*client]struct{}
	// started is closed when it is ready or has failed.
	started, exited chan struct{}
}

// launch starts the server's process as the user. The announcement comes later.
func launch(uid uint32) (*server, *exec.Cmd, *bufio.Reader, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, nil, err
	}
	cmd := exec.Command(filepath.Join(filepath.Dir(self), ServerName))
	cmd.Dir = "/"
	if int(uid) != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, nil, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, nil, err
	}
	s := &server{
		pid: cmd.Process.Pid, uid: uid, input: input,
		clients: map[*client]struct{}{}, started: make(chan struct{}), exited: make(chan struct{}),
	}
	return s, cmd, bufio.NewReader(output), nil
}
