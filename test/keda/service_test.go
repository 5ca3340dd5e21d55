package keda

import (
	"io"
	"net"
	"sync"
	"testing"
)

// service is an address that leads to one replica, as a Service's does for each connection.
type service struct {
	listener net.Listener

	mu      sync.Mutex
	replica string
}

func newService(t *testing.T, replica string) *service {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	s := &service{listener: listener, replica: replica}
	go s.run()
	return s
}

func (s *service) address() string { return s.listener.Addr().String() }

// leadTo is where connections lead from now on.
func (s *service) leadTo(replica string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replica = replica
}

func (s *service) run() {
	for {
		client, err := s.listener.Accept()
		if err != nil {
			return // the test has ended
		}
		go s.forward(client)
	}
}

// forward ends both connections when one ends.
func (s *service) forward(client net.Conn) {
	defer client.Close()
	s.mu.Lock()
	replica := s.replica
	s.mu.Unlock()
	server, err := net.Dial("tcp", replica)
	if err != nil {
		return
	}
	defer server.Close()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // a broken connection has ended
			ended <- struct{}{}
		}()
	}
	<-ended
}
