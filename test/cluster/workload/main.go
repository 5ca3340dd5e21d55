// Command workload is what runs in the containers of the cluster's tests: it
// shows which GPUs the container got, and has the few verbs that tests need in
// a container without a shell.
package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

const usage = `usage: workload VERB

  show       print the container's GPUs, then wait for SIGTERM
  serve PORT print the container's GPUs, then answer each HTTP request until SIGTERM
  once       print the container's GPUs
  mps        be a client of the simulator's MPS, print what it grants, then wait for SIGTERM
  sleep      wait for SIGTERM
  exit CODE  exit with CODE
  cat FILE   print a file
  ls DIR     list a directory
  get-api    ask the API server for its version with the pod's token
`

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "workload:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	verb, operand := "show", ""
	if len(args) > 0 {
		verb = args[0]
	}
	if len(args) > 1 {
		operand = args[1]
	}
	switch verb {
	case "show":
		// Before the output, so that who reads it may stop the container.
		stop := onStop()
		if err := show(out); err != nil {
			return err
		}
		<-stop
		return nil
	case "serve":
		stop := onStop()
		if err := show(out); err != nil {
			return err
		}
		return serve(operand, stop)
	case "once":
		return show(out)
	case "mps":
		return runMPS(out, onStop())
	case "sleep":
		<-onStop()
		return nil
	case "exit":
		code, err := strconv.Atoi(operand)
		if err != nil {
			return fmt.Errorf("reading the exit code: %w", err)
		}
		os.Exit(code)
	case "cat":
		return cat(out, operand)
	case "ls":
		return list(out, operand)
	case "get-api":
		return getAPI(out)
	}
	fmt.Fprint(os.Stderr, usage)
	return fmt.Errorf("%q is no verb", verb)
}

// onStop receives once the container gets SIGTERM. As process 1 it would
// ignore the signal otherwise.
func onStop() <-chan os.Signal {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	return stop
}
