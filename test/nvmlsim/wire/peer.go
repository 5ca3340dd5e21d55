package wire

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// isUnprivileged says whether the peer's process is not root's. A connection that
// is no socket of the kernel's is within this process, and so as privileged.
func isUnprivileged(conn net.Conn) (bool, error) {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return false, nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false, fmt.Errorf("find out who the client is: %w", err)
	}
	var peer *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return false, fmt.Errorf("find out who the client is: %w", err)
	}
	if failed != nil {
		return false, fmt.Errorf("find out who the client is: %w", failed)
	}
	return peer.Uid != 0, nil
}
