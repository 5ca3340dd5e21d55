package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// mpsReply is what the simulator's MPS control daemon answers. Its protocol is
// documented in package mps of the simulator, in another module.
type mpsReply struct {
	Error     string        `json:"error"`
	Allocated bool          `json:"allocated"`
	Connected *mpsConnected `json:"connected"`
}

type mpsConnected struct {
	Server           int     `json:"server"`
	SharedMemory     string  `json:"sharedMemory"`
	Token            string  `json:"token"`
	ThreadPercentage float64 `json:"threadPercentage"`
	Devices          []struct {
		UUID             string `json:"uuid"`
		MemoryLimitBytes uint64 `json:"memoryLimitBytes"`
	} `json:"devices"`
}

type mpsClient struct {
	conn    net.Conn
	answers *json.Decoder
}

// runMPS is a client of MPS until it gets SIGTERM: it prints what the server grants
// it, and whether that holds. It fails when the connection breaks.
func runMPS(out io.Writer, stop <-chan os.Signal) error {
	client, connected, err := connectMPS()
	if err != nil {
		return err
	}
	defer client.conn.Close()
	fmt.Fprintf(out, "mps server %d\nmps threads %g%%\n", connected.Server, connected.ThreadPercentage)
	for i, device := range connected.Devices {
		fmt.Fprintf(out, "mps device %s memory %d\n", device.UUID, device.MemoryLimitBytes)
		half := device.MemoryLimitBytes / 2
		for _, bytes := range []uint64{half, device.MemoryLimitBytes - half + 1} {
			verdict, err := client.allocate(i, bytes)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "mps allocate %d %s\n", bytes, verdict)
		}
	}
	fmt.Fprintln(out, "mps connected")
	broken := make(chan error, 1)
	go func() { broken <- client.wait() }()
	select {
	case <-stop:
		return nil
	case err := <-broken:
		fmt.Fprintln(out, "mps lost")
		return fmt.Errorf("the connection to the MPS server is broken: %w", err)
	}
}

func connectMPS() (*mpsClient, *mpsConnected, error) {
	directory := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	if directory == "" {
		directory = "/tmp/nvidia-mps"
	}
	conn, err := net.Dial("unix", filepath.Join(directory, "control"))
	if err != nil {
		return nil, nil, fmt.Errorf("there is no MPS control daemon: %w", err)
	}
	client := &mpsClient{conn, json.NewDecoder(conn)}
	reply, err := client.ask(map[string]any{"connect": map[string]string{
		"visibleDevices":   os.Getenv("CUDA_VISIBLE_DEVICES"),
		"memoryLimit":      os.Getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
		"threadPercentage": os.Getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
	}})
	if err == nil && reply.Connected == nil {
		err = errors.New(reply.Error)
	}
	if err == nil {
		err = reply.Connected.sharesMemory()
	}
	if err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("connecting to MPS: %w", err)
	}
	return client, reply.Connected, nil
}

// sharesMemory fails without the server's /dev/shm, as the real client does.
func (c mpsConnected) sharesMemory() error {
	token, err := os.ReadFile(c.SharedMemory)
	if err == nil && string(token) != c.Token {
		err = fmt.Errorf("%s is another server's", c.SharedMemory)
	}
	if err != nil {
		return fmt.Errorf("CUDA_ERROR_MPS_CONNECTION_FAILED: the server's shared memory is not here: %w", err)
	}
	return nil
}

func (c *mpsClient) ask(request any) (mpsReply, error) {
	var reply mpsReply
	if err := json.NewEncoder(c.conn).Encode(request); err != nil {
		return reply, err
	}
	return reply, c.answers.Decode(&reply)
}

// allocate says what became of a request for memory: granted, or the error's name.
func (c *mpsClient) allocate(device int, bytes uint64) (string, error) {
	reply, err := c.ask(map[string]any{"allocate": map[string]any{"device": device, "bytes": bytes}})
	if err != nil {
		return "", fmt.Errorf("asking for memory: %w", err)
	}
	if reply.Allocated {
		return "granted", nil
	}
	name, _, _ := strings.Cut(reply.Error, ":")
	return "refused " + name, nil
}

// wait returns why the connection ended.
func (c *mpsClient) wait() error {
	var reply mpsReply
	if err := c.answers.Decode(&reply); err != nil {
		return err
	}
	return errors.New(reply.Error)
}
