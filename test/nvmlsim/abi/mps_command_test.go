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
