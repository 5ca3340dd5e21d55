package wire

import (
	"encoding/json"
	"fmt"
	"net"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/process"
)

// serveProcess gives the process at the other end contexts and keeps them until one
// of them, or the connection, ends. The process ID is the kernel's word.
func serveProcess(conn net.Conn, driver Driver) error {
	peer, err := peerOf(conn)
	if err != nil {
		return err
	}
	frame, err := readFrame(conn)
	if err != nil {
		return err
	}
	var request process.Request
	if err := json.Unmarshal(frame, &request); err != nil {
		return fmt.Errorf("a process asks for contexts in words that cannot be read: %w", err)
	}
	contexts, err := driver.OpenContexts(model.Process{
		PID: int(peer.Pid), Name: request.Name, VisibleDevices: request.VisibleDevices,
	})
	if err != nil {
		return replyToProcess(conn, process.Reply{Error: err.Error()})
	}
	defer contexts.Close()
	var reply process.Reply
	for _, d := range contexts.Devices() {
		reply.Devices = append(reply.Devices, process.Device(d))
	}
	if err := replyToProcess(conn, reply); err != nil {
		return err
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-contexts.Ended():
			conn.Close()
		case <-ended:
		}
	}()
	_, err = readFrame(conn)
	return err
}

func replyToProcess(conn net.Conn, reply process.Reply) error {
	raw, err := json.Marshal(reply)
	if err != nil {
		return err
	}
	return writeFrame(conn, raw)
}
