package keda

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// binary is test/kedaserver, built once.
var binary string

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard()) // KEDA's scalers log what they also return
	code, err := testWithServer(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func testWithServer(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "mica-keda-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "kedaserver")
	build := exec.Command("go", "build", "-o", binary, "./test/kedaserver")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build test/kedaserver: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// script is what the server answers from now on: see test/kedaserver.
type script struct {
	Active        bool
	Metric        string
	Value, Target float64
	Error         string
}

// server is a process.
type server struct {
	address string
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	ended   func() error
}

// serve starts a server and waits until it listens. The test's end ends it.
func serve(t *testing.T, first script, arguments ...string) *server {
	t.Helper()
	text, err := json.Marshal(first)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{command: exec.Command(binary, append(arguments, "--script", string(text))...)}
	if s.in, err = s.command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := s.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	said := &strings.Builder{} // written by the command until it has ended
	s.command.Stderr = said
	s.out = bufio.NewScanner(out)
	if err := s.command.Start(); err != nil {
		t.Fatal(err)
	}
	s.ended = sync.OnceValue(s.command.Wait)
	t.Cleanup(func() {
		s.kill(t)
		if t.Failed() {
			t.Logf("the server said:\n%s", said)
		}
	})
	s.address = s.line(t)
	return s
}

func (s *server) line(t *testing.T) string {
	t.Helper()
	if !s.out.Scan() {
		t.Fatalf("the server has ended: %v", s.ended())
	}
	return s.out.Text()
}

// answer returns when the script counts.
func (s *server) answer(t *testing.T, script script) {
	t.Helper()
	line, err := json.Marshal(script)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.in.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
	if got := s.line(t); got != "ok" {
		t.Fatalf("the server says %q to its script", got)
	}
}

// kill leaves the server no time to say goodbye.
func (s *server) kill(t *testing.T) {
	t.Helper()
	_ = s.command.Process.Kill() // it may have ended
	_ = s.ended()                // by the signal
}

// terminate is what kubelet does first.
func (s *server) terminate(t *testing.T) {
	t.Helper()
	if err := s.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := s.ended(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
}

// patience is for what happens soon, on a machine that is busy.
const patience = time.Minute

// eventually waits until check finds nothing wrong any more.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	began := time.Now()
	for {
		err := check()
		if err == nil {
			t.Logf("%s: after %s", what, time.Since(began).Round(time.Millisecond))
			return
		}
		if time.Since(began) > patience {
			t.Fatalf("%s: not within %s: %v", what, patience, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// receive gives what comes next.
func receive[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	began := time.Now()
	select {
	case got, open := <-from:
		if !open {
			t.Fatalf("%s: the channel is closed", what)
		}
		t.Logf("%s: after %s", what, time.Since(began).Round(time.Microsecond))
		return got
	case <-time.After(patience):
		t.Fatalf("%s: not within %s", what, patience)
		panic("not reached")
	}
}
