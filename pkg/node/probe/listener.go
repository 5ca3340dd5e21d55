package probe

import (
	"net"
	"slices"
	"sync"
)

// maxConnections is far above what kubelet and a few scrapers have.
const maxConnections = 32

// Bound keeps the youngest connections of a listener; one more closes the oldest. If new connections waited
// instead, a client that holds its own could keep kubelet out, which would restart the container.
func Bound(listener net.Listener) net.Listener { return &bounded{Listener: listener} }

type bounded struct {
	net.Listener
	mu sync.Mutex
	// open are the connections, the oldest first; at most maxConnections.
	open []*connection
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	accepted, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: accepted, of: b}
	if oldest := b.add(c); oldest != nil {
		_ = oldest.Close() // it is lost either way
	}
	return c, nil
}

// add returns the connection that is too many.
func (b *bounded) add(c *connection) (oldest *connection) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.open) == maxConnections {
		oldest = b.open[0]
		b.open = slices.Delete(b.open, 0, 1)
	}
	b.open = append(b.open, c)
	return oldest
}

type connection struct {
	net.Conn
	of *bounded
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.of.mu.Lock()
	if i := slices.Index(c.of.open, c); i >= 0 {
		c.of.open = slices.Delete(c.of.open, i, i+1)
	}
	c.of.mu.Unlock()
	return c.Conn.Close()
}
