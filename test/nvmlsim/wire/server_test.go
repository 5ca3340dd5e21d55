package wire

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"
)

// blocking is a library whose event waits end when its client is gone.
type blocking struct {
	refusing
	closed chan struct{}
}

func (b blocking) Init() nvml.Return { return nvml.SUCCESS }
func (b blocking) EventSetCreate() (nvml.EventSet, nvml.Return) {
	return blockingSet{closed: b.closed}, nvml.SUCCESS
}
func (b blocking) Close() { close(b.closed) }

type blockingSet struct {
	nvml.EventSet
	closed chan struct{}
}

func (s blockingSet) Wait(uint32) (nvml.EventData, nvml.Return) {
	<-s.closed
	return nvml.EventData{}, nvml.ERROR_UNINITIALIZED
}

// served is a server on two sockets, the second one for containers.
type served struct {
	host, container string
	opened          atomic.Int32
	library         blocking
}

func serve(t *testing.T) *served {
	t.Helper()
	dir, err := os.MkdirTemp("", "wire-")
	if err != nil {
		t.Fatal(err)
	}
	s := &served{
		host: filepath.Join(dir, "host"), container: filepath.Join(dir, "container"),
		library: blocking{closed: make(chan struct{})},
	}
	server := NewServer(func(Visible) Library {
		s.opened.Add(1)
		return s.library
	}, nil, nil)
	t.Cleanup(func() {
		server.Close()
		os.RemoveAll(dir)
	})
	for path, allowControl := range map[string]bool{s.host: true, s.container: false} {
		listener, err := Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		go func() {
			if err := server.Serve(t.Context(), listener, allowControl); err != nil {
				t.Errorf("serve: %v", err)
			}
		}()
	}
	return s
}

func dial(t *testing.T, path string) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func say(t *testing.T, conn net.Conn, frame []byte) {
	t.Helper()
	if err := writeFrame(conn, frame); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, conn net.Conn) nvml.Return {
	t.Helper()
	frame, err := readFrame(conn)
	if err != nil {
		t.Fatal(err)
	}
	return nvml.Return(binary.NativeEndian.Uint32(frame))
}

func succeeds(t *testing.T, conn net.Conn) {
	t.Helper()
	if r := hear(t, conn); r != nvml.SUCCESS {
		t.Fatalf("the server answers %d", r)
	}
}

func helloFrame(version, opens uint8, session string) []byte {
	frame := append([]byte(libraryMagic), version, opens, 0xff, 0xff)
	frame = binary.NativeEndian.AppendUint32(frame, 1)
	id := sessionID{}
	copy(id[:], session)
	frame = binary.NativeEndian.AppendUint32(append(frame, id[:]...), 0)
	return append(frame, make([]byte, libraryVersionSize)...)
}

func TestServerAdmits(t *testing.T) {
	s := serve(t)
	first := dial(t, s.host)
	for _, test := range []struct {
		name  string
		hello []byte
		want  nvml.Return
	}{
		{"a client of another version", helloFrame(ProtocolVersion+1, 1, "a"), nvml.ERROR_LIB_RM_VERSION_MISMATCH},
		{"one more connection of an unknown session", helloFrame(ProtocolVersion, 0, "a"), nvml.ERROR_UNKNOWN},
		{"a new session", helloFrame(ProtocolVersion, 1, "a"), nvml.SUCCESS},
		{"a new session with a known name", helloFrame(ProtocolVersion, 1, "a"), nvml.ERROR_UNKNOWN},
		{"one more connection", helloFrame(ProtocolVersion, 0, "a"), nvml.SUCCESS},
	} {
		conn := first
		if test.name != "a new session" {
			conn = dial(t, s.container)
		}
		say(t, conn, test.hello)
		if got := hear(t, conn); got != test.want {
			t.Errorf("%s is answered with %d, want %d", test.name, got, test.want)
		}
	}
	if opened := s.opened.Load(); opened != 1 {
		t.Errorf("%d sessions were opened", opened)
	}
}

// A client that dies in a blocking call ends the call and its session.
func TestDeathOfAClientEndsItsWait(t *testing.T) {
	s := serve(t)
	conn := dial(t, s.host)
	say(t, conn, helloFrame(ProtocolVersion, 1, "c"))
	succeeds(t, conn)
	say(t, conn, newRequest("nvmlInit_v2", 0).frame)
	succeeds(t, conn)
	say(t, conn, newRequest("nvmlEventSetCreate", 1).u8(uint8(Out)).u8(1).u32(8).frame)
	succeeds(t, conn)
	say(t, conn, newRequest("nvmlEventSetWait_v2", 3).u8(uint8(Handle)).u64(firstHandle).
		u8(uint8(Out)).u8(1).u32(32).u8(uint8(U32)).u32(600_000).frame)
	conn.Close()
	select {
	case <-s.library.closed:
	case <-time.After(30 * time.Second):
		t.Fatal("the session is still open")
	}
}

// scarce is a listener that fails with each of its errors and then is closed.
type scarce struct {
	net.Listener
	errs []error
}

func (l *scarce) Addr() net.Addr { return &net.UnixAddr{Name: "scarce", Net: "unix"} }

func (l *scarce) Accept() (net.Conn, error) {
	if len(l.errs) == 0 {
		return nil, net.ErrClosed
	}
	err := l.errs[0]
	l.errs = l.errs[1:]
	return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", err)}
}

func TestServeOutlivesWhatPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := NewServer(nil, nil, nil)
		defer server.Close()
		if err := server.Serve(t.Context(), &scarce{errs: []error{unix.EMFILE, unix.ECONNABORTED, unix.ENOMEM}}, true); err != nil {
			t.Errorf("it ends with %v", err)
		}
		if err := server.Serve(t.Context(), &scarce{errs: []error{unix.EINVAL}}, true); !errors.Is(err, unix.EINVAL) {
			t.Errorf("it ends with %v where no pause helps", err)
		}
	})
}
