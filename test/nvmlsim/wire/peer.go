package wire

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// peerOf is the process at the other end. A connection that is no socket of the
// kernel's is within this process.
func peerOf(conn net.Conn) (unix.Ucred, error) {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return unix.Ucred{Pid: int32(os.Getpid()), Uid: 0}, nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return unix.Ucred{}, fmt.Errorf("find out who the client is: %w", err)
	}
	var peer *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return unix.Ucred{}, fmt.Errorf("find out who the client is: %w", err)
	}
	if failed != nil {
		return unix.Ucred{}, fmt.Errorf("find out who the client is: %w", failed)
	}
	return *peer, nil
}
