package supervisor

import (
	"context"
	"io"
	"net"
)

// forward passes connections that listener, a socket of the machine's network
// namespace, accepts to target, an address in the sandbox's.
func forward(ctx context.Context, listener net.Listener, target string) {
	context.AfterFunc(ctx, func() { listener.Close() })
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go join(ctx, conn, target)
	}
}

// join copies both ways until both sides are done. TCP sockets are spliced in
// the kernel.
func join(ctx context.Context, client net.Conn, target string) {
	defer client.Close()
	server, err := (&net.Dialer{}).DialContext(ctx, "tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pass(server, client)
	}()
	pass(client, server)
	<-done
}

// pass copies until from ends, and then closes the writing half of to.
func pass(to, from net.Conn) {
	// An error is one of the two connections ending, which both sides see.
	_, _ = io.Copy(to, from)
	if half, ok := to.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
}
