package abi_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/test/nvmlsim/mps"
)

func TestMPSCommands(t *testing.T) {
	t.Parallel()
	d := start(t, "g6.xlarge")
	m := d.mps(nil).start()
	w := m.client(0).says("mps connected")
	server, client := m.ask("get_server_list"), fmt.Sprint(w.cmd.Process.Pid)
	for _, test := range []struct{ command, want string }{
		{"get_server_status " + server, "ACTIVE"},
		{"get_client_list " + server, client},
		{"get_device_client_list", "Device 0 " + d.uuid(0) + ": " + client},
		{"get_default_active_thread_percentage", "100.0"},
		{"set_default_active_thread_percentage 33.3", "33.3"},
		{"get_default_active_thread_percentage", "33.3"},
		// Defaults are for the next server.
		{"get_active_thread_percentage " + server, "100.0"},
		{"set_active_thread_percentage " + server + " 60", "60.0"},
		{"get_active_thread_percentage " + server, "60.0"},
		{"set_default_device_pinned_mem_limit 0 512M", ""},
		{"get_default_device_pinned_mem_limit 0", "512M"},
		{"set_device_pinned_mem_limit " + server + " 0 3G", ""},
		{"get_device_pinned_mem_limit " + server + " 0", "3G"},
		{"start_server -uid 0", "MPS server " + server + " of user 0 runs already"},
		{"", ""},
		{"ps -p 1", "PID     ID    SERVER   DEVICE             NAMESPACE    COMMAND"},
	} {
		if out := m.ask(test.command); out != test.want {
			t.Errorf("%s says %q, want %q", test.command, out, test.want)
		}
	}
	m.client(0).says("threads 60%").says("memory 3221225472").stop()
	for _, want := range []string{client, server, d.uuid(0)[:17], "workload"} {
		if out := m.ask("ps"); !strings.Contains(out, want) {
			t.Errorf("ps says\n%s\nwithout %s", out, want)
		}
	}
	if out := m.ask("help"); !strings.Contains(out, "quit [-t SECONDS]\n") {
		t.Errorf("help says\n%s", out)
	}
}

func TestMPSCommandsAreRefused(t *testing.T) {
	t.Parallel()
	m := start(t, "g6.xlarge").mps(nil).start()
	for command, want := range map[string]string{
		"fly":                                    "unknown command: fly",
		"get_server_status":                      "usage: get_server_status PID",
		"get_server_status 1":                    "there is no MPS server with process ID 1",
		"start_server 0 -uid":                    "usage: start_server -uid UID",
		"quit now":                               "usage: quit [-t SECONDS]",
		"quit -t soon":                           `"soon" is not a number of seconds`,
		"ps 1":                                   "usage: ps [-p PID]",
		"set_default_active_thread_percentage 0": "is not a percentage",
		"set_default_active_thread_percentage 101": "is not a percentage",
		"set_default_active_thread_percentage NaN": "is not a percentage",
		"set_default_device_pinned_mem_limit 0 1":  "is not a size",
		"set_default_device_pinned_mem_limit 0 0M": "is not a size",
		"get_default_device_pinned_mem_limit 0":    "has no pinned memory limit",
		"terminate_client 1 1":                     "there is no MPS server",
	} {
		if out := m.ask(command); !strings.Contains(out, want) || strings.Contains(out, "\n") {
			t.Errorf("%s says %q, want %q", command, out, want)
		}
	}
	for _, environment := range []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=1G", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1T", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=all"} {
		m.client(0, environment).says("CUDA_ERROR_INVALID_VALUE").ends()
		other := m.of.mps([]string{environment})
		if out, err := output(other.command("-d")); exitStatus(t, err) != 1 || out == "" {
			t.Errorf("a daemon with %s: %v\n%s", environment, err, out)
		}
	}
	m.client(0, "CUDA_VISIBLE_DEVICES=GPU-none").says("CUDA_ERROR_NO_DEVICE").ends()
}

func TestMPSClientsAndServersAreEnded(t *testing.T) {
	t.Parallel()
	m := start(t, "g6.xlarge").mps(nil).start()
	w, other := m.client(0).says("mps connected"), m.client(0).says("mps connected")
	server := m.ask("get_server_list")
	m.ask(fmt.Sprintf("terminate_client %s %d", server, w.cmd.Process.Pid))
	w.says("mps lost").says("CUDA_ERROR_MPS_CLIENT_TERMINATED").ends()

	m.ask("shutdown_server " + server)
	waiting := m.client(0)
	other.stop()
	waiting.says("mps connected")
	if next := m.ask("get_server_list"); next == server {
		t.Errorf("server %s, which was shut down, took a client", server)
	} else {
		m.ask("shutdown_server " + next + " -f")
	}
	waiting.says("mps lost").ends()
}

func TestMPSQuitWaits(t *testing.T) {
	t.Parallel()
	m := start(t, "g6.xlarge").mps(nil).start()
	w := m.client(0).says("mps connected")
	quit := m.command()
	quit.Stdin = strings.NewReader("quit")
	if err := quit.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no client is taken any more", func() error {
		conn, err := net.Dial("unix", m.pipe()+"/control")
		if err != nil {
			return err
		}
		defer conn.Close()
		if reply := converse(t, conn, mps.Request{Connect: &mps.Connect{}}); !strings.HasPrefix(reply.Error, "CUDA_ERROR_MPS_CONNECTION_FAILED") {
			return fmt.Errorf("a client is answered %+v", reply)
		}
		return nil
	})
	if out := w.out.String(); strings.Contains(out, "lost") {
		t.Errorf("quit did not wait for its client:\n%s", out)
	}
	w.stop()
	if err := quit.Wait(); err != nil {
		t.Error(err)
	}

	w = m.start().client(0).says("mps connected")
	m.ask("quit -t 0")
	w.says("mps lost").ends()
}

// converse asks and is answered.
func converse(t *testing.T, conn net.Conn, request mps.Request) mps.Reply {
	t.Helper()
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		t.Fatal(err)
	}
	var reply mps.Reply
	if err := json.NewDecoder(conn).Decode(&reply); err != nil {
		t.Fatal(err)
	}
	return reply
}

func TestMPSClientsAreBounded(t *testing.T) {
	t.Parallel()
	m := start(t, "g6.xlarge").mps(nil).start()
	connect := func() (net.Conn, mps.Reply) {
		conn, err := net.Dial("unix", m.pipe()+"/control")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn, converse(t, conn, mps.Request{Connect: &mps.Connect{}})
	}
	var last net.Conn
	for n := range 48 {
		conn, reply := connect()
		if reply.Error != "" {
			t.Fatalf("client %d: %s", n, reply.Error)
		}
		last = conn
	}
	if _, reply := connect(); !strings.HasPrefix(reply.Error, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED") {
		t.Errorf("one client too many is answered %+v", reply)
	}
	last.Close()
	eventually(t, "there is room again", func() error {
		if conn, reply := connect(); reply.Error != "" {
			conn.Close()
			return fmt.Errorf("a client is answered %+v", reply)
		}
		return nil
	})
}

// A container without the server's /dev/shm has no MPS.
func TestMPSClientsShareMemory(t *testing.T) {
	t.Parallel()
	m := start(t, "g6.xlarge").mps(nil).start()
	w := m.client(0).says("mps connected")
	conn, err := net.Dial("unix", m.pipe()+"/control")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	shared := converse(t, conn, mps.Request{Connect: &mps.Connect{}}).Connected.SharedMemory
	if err := os.Remove(shared); err != nil {
		t.Fatal(err)
	}
	m.client(0).says("CUDA_ERROR_MPS_CONNECTION_FAILED").ends()
	w.stop()
}
