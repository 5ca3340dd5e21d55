// Command nvidia-cuda-mps-control is the simulator's stand-in for the control daemon of
// CUDA's Multi-Process Service and its front end and, under the name
// nvidia-cuda-mps-server, for its server.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/mica-gpu/mica/test/nvmlsim/mps"
)

// readyVariable holds the descriptor on which a daemon in the background says that it
// listens.
const readyVariable = "NVML_SIM_MPS_READY"

func main() {
	run := control
	if filepath.Base(os.Args[0]) == mps.ServerName {
		run = func() error { return mps.Serve(os.Stdin, os.Stdout) }
	}
	if err := run(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func control() error {
	background := flag.Bool("d", false, "start the daemon in the background")
	foreground := flag.Bool("f", false, "start the daemon in the foreground")
	version := flag.Bool("v", false, "print the version")
	options, err := options()
	if err != nil {
		return err
	}
	flag.BoolVar(&options.MultiUser, "multiuser-server", false, "let the clients of all users share one server, which is root's")
	flag.Parse()
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("%s takes no arguments but has %q", mps.ControlName, flag.Args())
	case *version:
		fmt.Println("simulator (nvml-sim)")
		return nil
	case *background && os.Getenv(readyVariable) == "":
		return detach()
	case *background || *foreground:
		return serve(options)
	}
	return mps.Ask(options, os.Stdin, os.Stdout)
}

func options() (mps.Options, error) {
	o := mps.Options{
		MemoryLimit:      os.Getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
		ThreadPercentage: os.Getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
	}
	var failed [2]error
	o.PipeDirectory, failed[0] = directory("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
	o.LogDirectory, failed[1] = directory("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps")
	return o, errors.Join(failed[:]...)
}

func directory(variable, otherwise string) (string, error) {
	if dir := os.Getenv(variable); dir != "" {
		return filepath.Abs(dir)
	}
	return otherwise, nil
}

func serve(options mps.Options) error {
	daemon, err := mps.Start(options)
	if os.Getenv(readyVariable) != "" {
		os.Unsetenv(readyVariable) // it is nothing to servers
		said := os.NewFile(3, "ready")
		if err != nil {
			fmt.Fprint(said, err)
		}
		said.Close()
	}
	if err != nil {
		return err
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-asked
		daemon.Stop()
	}()
	daemon.Run()
	return nil
}

// detach starts the daemon as a process of its own and waits until it listens.
func detach() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ready, said, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), readyVariable+"=3")
	cmd.ExtraFiles = []*os.File{said}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	said.Close()
	failure, err := io.ReadAll(ready)
	if err != nil {
		return err
	}
	if len(failure) > 0 {
		return errors.New(string(failure))
	}
	return nil
}
