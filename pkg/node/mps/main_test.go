package mps

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/klog/v2"
)

// This variable makes the test binary another program.
const (
	actVariable  = "MICA_TEST_ACT"
	actControl   = "control"
	actServer    = "server"
	actSupervise = "supervise"
	actAttack    = "attack"
	// oldVariable makes a control daemon without -multiuser-server.
	oldVariable = "MICA_TEST_OLD"
)

func TestMain(m *testing.M) {
	switch os.Getenv(actVariable) {
	case actControl:
		os.Exit(control(os.Args[1:]))
	case actServer:
		time.Sleep(time.Minute) // a test kills it
		os.Exit(0)
	case actAttack:
		os.Exit(attack(os.Args[1]))
	case actSupervise:
		err := NewSupervisor(os.Args[1], NewPrograms(controlTools{})).Run(klog.NewContext(context.Background(), klog.Background()))
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	dir, err := os.MkdirTemp("", "mica-")
	if err == nil {
		err = errors.Join(link(dir), os.Setenv(binVariable, dir))
	}
	code := 1
	if err == nil {
		code = m.Run()
	}
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// controlTools has this binary as the control program.
type controlTools struct {
	old bool
	dev string // empty for /dev
}

func (c controlTools) Devices() string { return cmp.Or(c.dev, "/dev") }

// binVariable is the directory with links to this binary, by the names of MPS's programs.
const binVariable = "MICA_TEST_BIN"

func link(dir string) error {
	own, err := os.Executable()
	if err != nil {
		return err
	}
	return errors.Join(os.Symlink(own, filepath.Join(dir, controlProgram)), os.Symlink(own, filepath.Join(dir, "nvidia-cuda-mps-server")))
}

func (c controlTools) Find(program string) (string, error) {
	return filepath.Join(os.Getenv(binVariable), program), nil
}

func (c controlTools) Environment() ([]string, error) {
	// The race detector lets a process end a second later.
	environment := append(os.Environ(), actVariable+"="+actControl, "GORACE=atexit_sleep_ms=0")
	if c.old {
		environment = append(environment, oldVariable+"=1")
	}
	return environment, nil
}

// control stands in for nvidia-cuda-mps-control. Commands and answers are lines.
func control(arguments []string) int {
	socket := filepath.Join(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), "control")
	if len(arguments) == 0 {
		return ask(socket)
	}
	if len(arguments) > 1 && os.Getenv(oldVariable) != "" {
		fmt.Println("unknown option", arguments[1])
		return 1
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if err := serverProcess(); err != nil {
		fmt.Println(err)
		return 1
	}
	percentage := "100.0"
	for {
		conn, err := listener.Accept()
		if err != nil {
			fmt.Println(err)
			return 1
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil {
			continue
		}
		answer := ""
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name {
		case "get_default_active_thread_percentage":
			answer = percentage
		case "set_default_active_thread_percentage":
			percentage = value + ".0"
		case "devices":
			answer = os.Getenv("CUDA_VISIBLE_DEVICES")
		case "hang":
			continue // the connection stays open
		case "quit":
			_ = conn.Close() // the answer is that it ends
			return 0
		}
		_, err = fmt.Fprintln(conn, answer)
		if err := errors.Join(err, conn.Close()); err != nil {
			fmt.Println(err)
		}
	}
}

// serverProcess is a process that leaves the group of the daemon.
func serverProcess() error {
	server := exec.Command(filepath.Join(os.Getenv(binVariable), "nvidia-cuda-mps-server"))
	server.Env = append(os.Environ(), actVariable+"="+actServer)
	server.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return server.Start()
}

func ask(socket string) int {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		fmt.Println("Cannot find MPS control daemon process")
		return 1
	}
	if _, err := io.Copy(conn, os.Stdin); err != nil {
		return 1
	}
	if _, err := io.Copy(os.Stdout, conn); err != nil {
		return 1
	}
	return 0
}
