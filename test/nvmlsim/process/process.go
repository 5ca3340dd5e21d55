// Package process owns how a program that computes makes itself known to the
// simulated driver: it asks for contexts on GPUs by a connection and keeps them as
// long as the connection. It never computes, and needs no C library, so that it
// runs in any container.
package process

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
)

// Magic introduces such a connection on the simulator's sockets.
const Magic = "NVMLPRC\x00"

// Request asks for a context on each of some devices.
type Request struct {
	// VisibleDevices is CUDA_VISIBLE_DEVICES: GPUs by index or UUID, or MIG devices
	// by UUID; all GPUs if it is nil.
	VisibleDevices *string `json:"visibleDevices,omitempty"`
	// Name is the program's.
	Name string `json:"name"`
}

// Device is one on which there now is a context.
type Device struct {
	UUID        string `json:"uuid"`
	MemoryBytes uint64 `json:"memoryBytes"`
	// ComputeCapability is the major number of CUDA's.
	ComputeCapability int `json:"computeCapability"`
}

// Reply answers a Request.
type Reply struct {
	// Error begins with the name of a CUDA error.
	Error   string   `json:"error,omitempty"`
	Devices []Device `json:"devices,omitempty"`
}

// Contexts are those of this process.
type Contexts struct {
	Devices []Device

	conn net.Conn
	lost chan struct{}
}

// Open asks the simulator that listens on the socket for contexts.
func Open(socket string, request Request) (*Contexts, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("CUDA_ERROR_SYSTEM_NOT_READY: no simulated driver answers on %s: %w", socket, err)
	}
	reply, err := ask(conn, request)
	if err == nil && reply.Error != "" {
		err = errors.New(reply.Error)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	c := &Contexts{Devices: reply.Devices, conn: conn, lost: make(chan struct{})}
	go func() {
		defer close(c.lost)
		_, _ = io.Copy(io.Discard, conn)
	}()
	return c, nil
}

func ask(conn net.Conn, request Request) (Reply, error) {
	raw, err := json.Marshal(request)
	if err != nil {
		return Reply{}, err
	}
	if err := writeFrame(conn, []byte(Magic)); err != nil {
		return Reply{}, err
	}
	if err := writeFrame(conn, raw); err != nil {
		return Reply{}, err
	}
	answer, err := readFrame(conn)
	if err != nil {
		return Reply{}, fmt.Errorf("the simulated driver does not answer: %w", err)
	}
	var reply Reply
	if err := json.Unmarshal(answer, &reply); err != nil {
		return Reply{}, fmt.Errorf("the simulated driver's answer cannot be read: %w", err)
	}
	return reply, nil
}

// Lost is closed when the contexts have ended: their GPU was lost or reset, the
// driver went away, or Close was called.
func (c *Contexts) Lost() <-chan struct{} { return c.lost }

// Close ends the contexts.
func (c *Contexts) Close() error { return c.conn.Close() }

// maxFrame is the simulator's, too.
const maxFrame = 64 << 10

// writeFrame writes the length in the machine's byte order, 32 bits, and the bytes.
func writeFrame(w io.Writer, frame []byte) error {
	if len(frame) > maxFrame {
		return fmt.Errorf("a frame of %d bytes is larger than %d", len(frame), maxFrame)
	}
	_, err := w.Write(append(binary.NativeEndian.AppendUint32(nil, uint32(len(frame))), frame...))
	return err
}

// readFrame reads what writeFrame wrote.
func readFrame(r io.Reader) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	size := binary.NativeEndian.Uint32(length[:])
	if size == 0 || size > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes is not between 1 and %d", size, maxFrame)
	}
	frame := make([]byte, size)
	_, err := io.ReadFull(r, frame)
	return frame, err
}

// containerSocket is where containers find the simulator.
const containerSocket = "/run/nvidia-persistenced/socket"

// Socket finds the simulator as the NVML library does: where NVML_SIM_SOCKET says, or
// in the driver root that this program lies in, or where containers have it.
func Socket() string {
	if socket := os.Getenv("NVML_SIM_SOCKET"); socket != "" {
		return socket
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "../lib64/nvml-sim.sock")
		if _, err := os.Stat(beside); err == nil {
			return beside
		}
	}
	return containerSocket
}
