package probe

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// A client that holds connections keeps kubelet from none.
func TestHeldConnectionsLockNoClientOut(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	well := func(context.Context) error { return nil }
	go func() { served <- Serve(ctx, listener, well, well) }()
	for range 3 * maxConnections {
		held, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
	}
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	limited, end := context.WithTimeout(ctx, 30*time.Second)
	defer end()
	for _, service := range []string{"", "liveness", "readiness"} {
		answer, err := grpc_health_v1.NewHealthClient(conn).Check(limited, &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil || answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("got %v, %v", answer, err)
		}
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestTheOldestConnectionMakesRoom(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bound := Bound(listener)
	defer bound.Close()
	var clients [maxConnections + 1]net.Conn
	for i := range clients {
		if clients[i], err = net.Dial("tcp", listener.Addr().String()); err != nil {
			t.Fatal(err)
		}
		defer clients[i].Close()
		accepted, err := bound.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer accepted.Close()
		if _, err := accepted.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	for i, client := range clients {
		if err := client.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		_, err := io.ReadAll(client)
		if closed := err == nil; closed != (i == 0) {
			t.Errorf("connection %d of %d is closed: %t", i, len(clients), closed)
		}
	}
}

func TestACheckRunsOnceForAllCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, runs atomic.Int32
		ill := errors.New("ill")
		var result error
		a := newAnswer(func(ctx context.Context) error {
			if running.Add(1) > 1 {
				t.Error("two checks at once")
			}
			defer running.Add(-1)
			runs.Add(1)
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(answerAge):
				return result
			}
		})
		leaving, leave := context.WithCancel(t.Context())
		answers := make(chan error, 101)
		go func() { answers <- a.get(leaving) }()
		synctest.Wait()
		for range 100 {
			go func() { answers <- a.get(t.Context()) }()
		}
		synctest.Wait()
		leave() // the one whose check it is
		for range 101 {
			if err := <-answers; err != nil {
				t.Errorf("got %v", err)
			}
		}
		if got := runs.Load(); got != 1 {
			t.Errorf("the check ran %d times for 101 who asked", got)
		}

		result = ill
		if err := a.get(t.Context()); err != nil {
			t.Errorf("got %v at once after an answer", err)
		}
		time.Sleep(answerAge)
		if err := a.get(t.Context()); !errors.Is(err, ill) {
			t.Errorf("got %v after %s", err, answerAge)
		}

		time.Sleep(answerAge)
		go func() { answers <- a.get(t.Context()) }()
		synctest.Wait()
		if err := a.get(leaving); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v for who left while another one's check runs", err)
		}
		if err := <-answers; err == nil {
			t.Error("got no answer of the check for who stayed")
		}
	})
}
