package supervisor

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"time"

	"github.com/mica-gpu/mica/test/cluster/internal/layout"
)

// Request is one line on the control socket.
type Request struct {
	// Verb is one of status, restart, stop and start.
	Verb string `json:"verb"`
	// Component is what to restart, stop or start.
	Component string `json:"component,omitempty"`
}

// Reply answers a request.
type Reply struct {
	// Error is empty when the request was done.
	Error      string   `json:"error,omitempty"`
	Components []Status `json:"components,omitempty"`
}

// ask is a request on its way to the supervisor's loop.
type ask struct {
	request Request
	reply   chan Reply
}

// Ask sends a request to the cluster in dir.
func Ask(dir layout.Dir, request Request) (Reply, error) {
	conn, err := net.Dial("unix", dir.Control())
	if err != nil {
		return Reply{}, fmt.Errorf("asking the cluster in %s: %w", dir, err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return Reply{}, fmt.Errorf("asking the cluster in %s: %w", dir, err)
	}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return Reply{}, fmt.Errorf("asking the cluster in %s: %w", dir, err)
	}
	var reply Reply
	if err := json.NewDecoder(conn).Decode(&reply); err != nil {
		return Reply{}, fmt.Errorf("reading the answer of the cluster in %s: %w", dir, err)
	}
	if reply.Error != "" {
		return Reply{}, fmt.Errorf("the cluster in %s refuses: %s", dir, reply.Error)
	}
	return reply, nil
}

// listen serves the control socket until ctx ends.
func (s *Supervisor) listen(ctx context.Context) error {
	listener, err := net.Listen("unix", s.spec.Dir.Control())
	if err != nil {
		return fmt.Errorf("opening the control socket: %w", err)
	}
	context.AfterFunc(ctx, func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.serve(ctx, conn)
		}
	}()
	return nil
}

func (s *Supervisor) serve(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	question := ask{reply: make(chan Reply, 1)}
	if err := json.NewDecoder(conn).Decode(&question.request); err != nil {
		return
	}
	select {
	case s.asks <- question:
	case <-ctx.Done():
		return
	}
	// A client that went away does not want the answer.
	_ = json.NewEncoder(conn).Encode(<-question.reply)
}

// obey does what was asked, on the supervisor's loop.
func (s *Supervisor) obey(request Request) Reply {
	var err error
	switch request.Verb {
	case "status":
		return Reply{Components: s.status()}
	case "restart":
		err = s.restart(request.Component)
	case "stop":
		err = s.stop(request.Component)
	case "start":
		err = s.resume(request.Component)
	default:
		err = fmt.Errorf("%q is no verb: there are status, restart, stop and start", request.Verb)
	}
	if err != nil {
		return Reply{Error: err.Error()}
	}
	return Reply{}
}
