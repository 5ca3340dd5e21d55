package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
)

// The port of health checks is every pod's of the cluster: a client that sends what it likes takes neither the
// node's memory nor kubelet's answers.
func TestAFloodOfHealthChecks(t *testing.T) {
	// Of the memory, less than 10 MB are the server's: the client, and what it leaves behind, are in this process, too.
	const checks, memory, files, goroutines = 10_000, 20 << 20, 100, 300
	o := options(t, apiserver.New(), newHardware(t))
	d, _ := run(t, o)
	register(t, o)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { served <- d.ServeHealth(ctx, listener) }()
	fixture.Eventually(t, "readiness", func() error { return errors.Join(d.Ready(), probeAsKubelet(t, listener.Addr())) })

	before := taken(t)
	flooded := make(chan error, 1)
	go func() { flooded <- flood(listener.Addr(), checks) }()
	var most usage
	var slowest time.Duration
	late := 0
	for probes, ended := 0, false; !ended || probes < 5; probes++ {
		start := time.Now()
		if err := probeAsKubelet(t, listener.Addr()); err != nil {
			t.Errorf("kubelet's probe: %v", err)
		}
		took := time.Since(start)
		slowest = max(slowest, took)
		if took > time.Second {
			late++
		}
		most = most.max(taken(t))
		select {
		case err := <-flooded:
			must(t, err)
			ended = true
		default:
		}
	}
	growth := usage{memory: most.memory - before.memory, files: most.files - before.files, goroutines: most.goroutines - before.goroutines}
	t.Logf("kubelet's slowest probe took %s; %+v more than before", slowest, growth)
	if growth.memory > memory || growth.files > files || growth.goroutines > goroutines {
		t.Errorf("%d checks on one connection take %+v more than before", checks, growth)
	}
	// A machine that compiles beside the tests may hold this process up once; kubelet acts on the third.
	if late > 1 {
		t.Errorf("%d of kubelet's probes took longer than a second, the slowest %s", late, slowest)
	}
	cancel()
	must(t, <-served)
}

// probeAsKubelet opens a connection for one check.
func probeAsKubelet(t *testing.T, address net.Addr) error {
	t.Helper()
	conn, err := grpc.NewClient(address.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer func() { must(t, conn.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "liveness"})
	if err == nil && answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		err = fmt.Errorf("it is %s", answer.GetStatus())
	}
	return err
}

// usage is what this process has, without what the garbage collector would free.
type usage struct{ memory, files, goroutines int }

func (u usage) max(other usage) usage {
	return usage{max(u.memory, other.memory), max(u.files, other.files), max(u.goroutines, other.goroutines)}
}

func taken(t *testing.T) usage {
	t.Helper()
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	open, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return usage{int(memory.HeapAlloc + memory.StackInuse), len(open), runtime.NumGoroutine()}
}

// flood sends health checks on one connection as fast as it takes them, without regard to its limits, and returns
// when each has an answer.
func flood(address net.Addr, checks int) error {
	conn, err := net.Dial("tcp", address.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Minute)); err != nil {
		return err
	}
	answered := make(chan error, 1)
	go func() { answered <- awaitEnds(conn, checks) }()
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return err
	}
	framer := http2.NewFramer(conn, nil)
	if err := framer.WriteSettings(); err != nil {
		return err
	}
	var headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	encoder.SetMaxDynamicTableSizeLimit(0) // so that the same bytes are good for each request
	for _, field := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", grpc_health_v1.Health_Check_FullMethodName}, {":authority", "plugin"},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		if err := encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}); err != nil {
			return err
		}
	}
	for i := range checks {
		id := uint32(2*i + 1)
		err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: headers.Bytes(), EndHeaders: true})
		if err == nil {
			err = framer.WriteData(id, true, make([]byte, 5)) // an empty message
		}
		if err != nil {
			return err
		}
	}
	return <-answered
}

// awaitEnds reads until that many streams have ended.
func awaitEnds(conn net.Conn, streams int) error {
	framer := http2.NewFramer(conn, conn)
	for ended := 0; ended < streams; {
		frame, err := framer.ReadFrame()
		if err != nil {
			return fmt.Errorf("after %d answers: %w", ended, err)
		}
		switch frame := frame.(type) {
		case *http2.RSTStreamFrame:
			ended++
		case *http2.HeadersFrame:
			if frame.StreamEnded() {
				ended++
			}
		}
	}
	return nil
}
