package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mica-gpu/mica/test/cluster/internal/layout"
	"github.com/mica-gpu/mica/test/cluster/internal/process"
)

// longer than anything here takes on a slow machine.
const patience = 30 * time.Second

func newTestSupervisor(t *testing.T) *Supervisor {
	t.Helper()
	s := New(Spec{Dir: layout.Dir(t.TempDir())}, nil, nil)
	for _, name := range s.names() {
		s.components[name].command = process.Command{
			Name: name, Path: "/bin/sh", Args: []string{"-c", "exec sleep 600"}, Log: filepath.Join(t.TempDir(), name),
		}
	}
	t.Cleanup(func() {
		close(s.finished)
		for _, c := range s.components {
			if c.process != nil {
				c.process.Kill()
			}
		}
	})
	return s
}

// receive returns the next process on a channel of the supervisor.
func receive(t *testing.T, from <-chan *process.Process) *process.Process {
	t.Helper()
	select {
	case p := <-from:
		return p
	case <-time.After(patience):
		t.Fatal("no process ended in time")
		return nil
	}
}

func TestAComponentThatEndsByItselfEndsTheCluster(t *testing.T) {
	s := newTestSupervisor(t)
	if err := s.start(kubelet); err != nil {
		t.Fatal(err)
	}
	s.components[kubelet].process.Kill()
	err := s.handleEnd(receive(t, s.ended))
	if err == nil || !strings.Contains(err.Error(), "kubelet ended after") || !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("got %v", err)
	}
}

func TestAnEndThatWasAskedForIsNone(t *testing.T) {
	s := newTestSupervisor(t)
	if err := s.start(kubelet); err != nil {
		t.Fatal(err)
	}
	first := s.components[kubelet].process
	if err := s.restart(kubelet); err != nil {
		t.Fatal(err)
	}
	if err := s.handleEnd(receive(t, s.ended)); err != nil {
		t.Error(err)
	}
	second := s.components[kubelet].process
	if second == first || second.PID() == first.PID() {
		t.Error("the component was not started again")
	}
}

func TestAComponentThatDiesAfterARestartIsStartedAgainAFewTimes(t *testing.T) {
	s := newTestSupervisor(t)
	if err := s.start(containerd); err != nil {
		t.Fatal(err)
	}
	if err := s.restart(containerd); err != nil {
		t.Fatal(err)
	}
	if err := s.handleEnd(receive(t, s.ended)); err != nil {
		t.Fatal(err)
	}
	c := s.components[containerd]
	dead := c.process
	dead.Kill()
	if err := s.handleEnd(receive(t, s.ended)); err != nil {
		t.Fatalf("the first early end is final: %v", err)
	}
	if err := s.startAgain(receive(t, s.again)); err != nil {
		t.Fatal(err)
	}
	if c.process == dead {
		t.Fatal("it was not started again")
	}
	c.attempts = maxAttempts
	c.process.Kill()
	if err := s.handleEnd(receive(t, s.ended)); err == nil {
		t.Error("it would be started forever")
	}
}

func TestRequests(t *testing.T) {
	s := newTestSupervisor(t)
	for _, name := range s.names() {
		if err := s.start(name); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		request Request
		want    string
	}{
		{Request{Verb: "stop", Component: kubelet}, ""},
		{Request{Verb: "start", Component: kubelet}, ""},
		{Request{Verb: "start", Component: kubelet}, "is not stopped"},
		{Request{Verb: "restart", Component: containerd}, ""},
		{Request{Verb: "stop", Component: etcd}, "survives the loss of kubelet and containerd only"},
		{Request{Verb: "start", Component: "docker"}, "is not stopped"},
		{Request{Verb: "dance"}, "is no verb"},
		{Request{Verb: "status"}, ""},
	} {
		reply := s.obey(step.request)
		if (step.want == "") != (reply.Error == "") || !strings.Contains(reply.Error, step.want) {
			t.Errorf("%+v: got %q, want %q", step.request, reply.Error, step.want)
		}
	}
	status := s.obey(Request{Verb: "status"}).Components
	if len(status) != len(s.components) {
		t.Errorf("the status has %d of %d components", len(status), len(s.components))
	}
	for _, c := range status {
		if !c.Running {
			t.Errorf("%s does not run", c.Name)
		}
	}
}

func TestTheControlSocketAnswers(t *testing.T) {
	s := newTestSupervisor(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := s.listen(ctx); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			select {
			case question := <-s.asks:
				question.reply <- s.obey(question.request)
			case <-ctx.Done():
				return
			}
		}
	}()
	if reply, err := Ask(s.spec.Dir, Request{Verb: "status"}); err != nil || len(reply.Components) != len(s.components) {
		t.Errorf("got %+v, %v", reply, err)
	}
	if _, err := Ask(s.spec.Dir, Request{Verb: "restart", Component: etcd}); err == nil || !strings.Contains(err.Error(), "refuses") {
		t.Errorf("got %v", err)
	}
}

func TestForwardPassesBothWaysAndEnds(t *testing.T) {
	target, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	go func() {
		conn, err := target.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		heard, err := io.ReadAll(conn)
		if err == nil {
			_, _ = conn.Write([]byte("heard " + string(heard)))
		}
	}()
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		forward(ctx, front, target.Addr().String())
		close(done)
	}()
	conn, err := net.Dial("tcp", front.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || string(answer) != "heard hello" {
		t.Errorf("got %q, %v", answer, err)
	}
	cancel()
	select {
	case <-done:
	case <-time.After(patience):
		t.Error("the forwarder did not end")
	}
}

func TestSchedulable(t *testing.T) {
	condition := func(status string) map[string]any {
		return map[string]any{"conditions": []map[string]string{{"type": "Ready", "status": status, "message": "no network"}}}
	}
	for name, test := range map[string]struct {
		node           any
		serviceAccount bool
		want           string
	}{
		"ready": {map[string]any{"status": condition("True")}, true, ""},
		"tainted": {map[string]any{
			"spec":   map[string]any{"taints": []map[string]string{{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}}},
			"status": condition("True"),
		}, true, "the node has the taint node.kubernetes.io/not-ready:NoSchedule"},
		"not ready":          {map[string]any{"status": condition("False")}, true, "the node is not ready: no network"},
		"silent":             {map[string]any{}, true, "does not say"},
		"no service account": {map[string]any{"status": condition("True")}, false, "404"},
	} {
		t.Run(name, func(t *testing.T) {
			mux := http.NewServeMux()
			mux.HandleFunc(nodePath, func(w http.ResponseWriter, _ *http.Request) {
				if err := json.NewEncoder(w).Encode(test.node); err != nil {
					t.Error(err)
				}
			})
			if test.serviceAccount {
				mux.HandleFunc("/api/v1/namespaces/default/serviceaccounts/default", func(http.ResponseWriter, *http.Request) {})
			}
			server := httptest.NewServer(mux)
			defer server.Close()
			err := (&api{client: server.Client(), server: server.URL}).schedulable(t.Context())
			if (test.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestAwaitGivesUpWhenAComponentEnds(t *testing.T) {
	s := newTestSupervisor(t)
	if err := s.start(etcd); err != nil {
		t.Fatal(err)
	}
	s.components[etcd].process.Kill()
	never := func(context.Context) error { return errors.New("not yet") }
	if err := s.await(t.Context(), "etcd", never); err == nil || !strings.Contains(err.Error(), "etcd ended") {
		t.Errorf("got %v", err)
	}
}

func TestCommandsNameOnlyWhatTheClusterOwns(t *testing.T) {
	spec := Spec{Dir: "/var/lib/mica", Binaries: map[string]string{}, SimNode: "/nodes/p5.yaml"}
	all := commands(spec)
	for _, name := range []string{etcd, apiserver, controllerManager, scheduler, kubelet, containerd, simulator} {
		command, ok := all[name]
		if !ok {
			t.Errorf("%s has no command", name)
		}
		for _, arg := range command.Args {
			_, value, _ := strings.Cut(arg, "=")
			if strings.HasPrefix(value, "/") && !strings.HasPrefix(value, "/var/lib/mica/") {
				t.Errorf("%s: %s is outside the cluster's directory", name, arg)
			}
		}
	}
	if !slices.Contains(all[simulator].Args, "/nodes/p5.yaml") {
		t.Errorf("the simulator is started with %v", all[simulator].Args)
	}
	spec.SimNode = ""
	if _, ok := commands(spec)[simulator]; ok {
		t.Error("a cluster without simulated GPUs has a simulator")
	}
}
