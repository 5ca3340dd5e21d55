package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/process"
)

// maxSocketPath is what fits into a socket address with its final NUL.
const maxSocketPath = 107

// Visible is which GPUs a client process may use.
type Visible struct {
	// All is set for a process on the machine itself; the others then are empty.
	All bool
	// Minors are those of the GPUs' device nodes.
	Minors []int
	// Capabilities are those of the capability devices, which guard MIG instances.
	Capabilities []int
	// Unprivileged is set for a process that is not root's. The kernel says so of
	// its connection, whatever the process says of itself.
	Unprivileged bool
	// Library is the version of the driver that the client's library is of, empty if
	// its file is not named for one.
	Library string
}

// Sessions gives each client a session of the machine that is restricted as it is.
func Sessions(machine *model.Machine) func(Visible) Library {
	return func(v Visible) Library {
		options := []model.SessionOption{model.LibraryVersion(v.Library)}
		if !v.All {
			options = append(options, model.VisibleMinors(v.Minors...), model.VisibleCapabilities(v.Capabilities...))
		}
		if v.Unprivileged {
			options = append(options, model.Unprivileged())
		}
		return machine.NewSession(options...)
	}
}

// Server answers NVML clients and, on the sockets that allow it, the control
// client.
type Server struct {
	newSession func(Visible) Library
	control    model.Control
	driver     Driver

	mu       sync.Mutex
	sessions map[sessionID]*session
	conns    map[net.Conn]struct{}
	closed   bool
	handlers sync.WaitGroup
}

// Driver gives processes contexts on GPUs.
type Driver interface {
	OpenContexts(model.Process) (*model.Contexts, error)
}

// NewServer returns a server that gives each client process a session of its
// own. The control is what the control client reaches, the driver what processes do
// that compute.
func NewServer(newSession func(Visible) Library, control model.Control, driver Driver) *Server {
	return &Server{
		newSession: newSession,
		control:    control,
		driver:     driver,
		sessions:   map[sessionID]*session{},
		conns:      map[net.Conn]struct{}{},
	}
}

// Listen makes a socket that any user may connect to, as any may open the
// device nodes of a GPU. It replaces a stale socket.
func Listen(path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("the socket path %s has %d characters; a socket address holds %d: choose a shorter one",
			path, len(path), maxSocketPath)
	}
	if conn, err := net.Dial("unix", path); err == nil {
		conn.Close()
		return nil, fmt.Errorf("another process listens on %s already: stop it or choose another socket", path)
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("%s is in the way of the socket and is not one itself: remove it or choose another path", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove the stale socket: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the socket's directory: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		listener.Close()
		return nil, fmt.Errorf("let every user connect to %s: %w", path, err)
	}
	return listener, nil
}

// acceptPause is for other clients to go and give back what ran out.
const acceptPause = 100 * time.Millisecond

// passes reports whether the next client may be accepted though this one was not
// (accept(2)).
func passes(err error) bool {
	return slices.ContainsFunc([]error{
		unix.ECONNABORTED, unix.EINTR, unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM,
	}, func(passing error) bool { return errors.Is(err, passing) })
}

// Serve accepts clients until the listener is closed. Control clients are
// turned away unless allowed: containers reach a socket too, and a container
// cannot pull a GPU out of the machine.
func (s *Server) Serve(ctx context.Context, listener net.Listener, allowControl bool) error {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if passes(err) {
			klog.FromContext(ctx).Error(err, "No client can be accepted for a moment", "socket", listener.Addr().String())
			time.Sleep(acceptPause)
			continue
		}
		if err != nil {
			return fmt.Errorf("accept a client on %s: %w", listener.Addr(), err)
		}
		if !s.admit(conn) {
			conn.Close()
			return nil
		}
		go func() {
			defer s.handlers.Done()
			defer s.dismiss(conn)
			if err := s.handle(ctx, conn, allowControl); err != nil {
				klog.FromContext(ctx).Error(err, "Client turned away")
			}
		}()
	}
}

func (s *Server) admit(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.conns[conn] = struct{}{}
	s.handlers.Add(1)
	return true
}

func (s *Server) dismiss(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
	conn.Close()
}

// Close ends all sessions and waits until no call is under way. The listeners
// belong to the caller, who closes them first.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	for conn := range s.conns {
		conn.Close()
	}
	s.mu.Unlock()
	s.handlers.Wait()
}

func (s *Server) handle(ctx context.Context, conn net.Conn, allowControl bool) error {
	frame, err := readFrame(conn)
	if err != nil {
		return ignoreClosed(err)
	}
	if string(frame) == controlMagic {
		if !allowControl {
			return errors.New("a control client came by the socket that containers use")
		}
		return ignoreClosed(serveControl(conn, s.control))
	}
	if string(frame) == process.Magic {
		return ignoreClosed(serveProcess(conn, s.driver))
	}
	h, err := decodeHello(frame)
	if err != nil {
		return err
	}
	peer, err := peerOf(conn)
	if err != nil {
		return ignoreClosed(err)
	}
	h.visible.Unprivileged = peer.Uid != 0
	session, result := s.join(h)
	if err := writeFrame(conn, binary.NativeEndian.AppendUint32(nil, uint32(result))); err != nil || session == nil {
		return ignoreClosed(err)
	}
	klog.FromContext(ctx).V(4).Info("Client connected", "pid", h.pid, "newSession", h.opens)
	return s.converse(conn, session, func() { s.leave(h.session, session) })
}

// join finds or opens the session that a client asks for.
func (s *Server) join(h hello) (*session, nvml.Return) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.version != ProtocolVersion {
		return nil, nvml.ERROR_LIB_RM_VERSION_MISMATCH
	}
	joined := s.sessions[h.session]
	if (joined == nil) != h.opens {
		return nil, nvml.ERROR_UNKNOWN
	}
	if joined == nil {
		joined = newSession(s.newSession(h.visible))
		s.sessions[h.session] = joined
	}
	joined.attach()
	return joined, nvml.SUCCESS
}

// leave gives up one connection of a session, and the session with the last.
// A connection that comes back for it later finds it gone.
func (s *Server) leave(id sessionID, left *session) {
	s.mu.Lock()
	last := left.detach()
	if last {
		delete(s.sessions, id)
	}
	s.mu.Unlock()
	if last {
		left.library.Close()
	}
}

// converse answers the calls of one connection, one after the other, and calls
// gone when the connection breaks.
func (s *Server) converse(conn net.Conn, session *session, gone func()) error {
	frames, failed := s.receive(conn, gone)
	for frame := range frames {
		reply, err := answerFrame(session, frame)
		if err != nil {
			return err
		}
		if err := writeFrame(conn, reply); err != nil {
			return ignoreClosed(err)
		}
	}
	return ignoreClosed(*failed)
}

// receive reads a connection's calls until it breaks, and then calls gone at
// once, whatever call is under way: a client that dies in a blocking call takes
// its session, and so the call, with it. The error is set once frames is closed.
func (s *Server) receive(conn net.Conn, gone func()) (frames <-chan []byte, failed *error) {
	received := make(chan []byte, 1)
	failed = new(error)
	s.handlers.Add(1)
	go func() {
		defer s.handlers.Done()
		defer gone()
		defer close(received)
		for {
			frame, err := readFrame(conn)
			if err != nil {
				*failed = err
				return
			}
			select {
			case received <- frame:
			default:
				*failed = errors.New("a client sent calls without waiting for their answers")
				return
			}
		}
	}()
	return received, failed
}

func answerFrame(session *session, frame []byte) ([]byte, error) {
	f, args, err := decodeRequest(frame)
	if err != nil {
		return nil, err
	}
	result := serveCall(&call{session: session, f: f, args: args})
	return encodeReply(f, args, uint32(result)), nil
}

func ignoreClosed(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || isReset(err) {
		return nil
	}
	return err
}
