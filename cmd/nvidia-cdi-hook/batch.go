package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// maxState bounds the container's state from the runtime: some paths and the annotations.
const maxState = 16 << 20

// runBatch runs hooks in order, each a JSON list of its name and arguments, with the container's
// state on standard input. Like a container runtime, it stops at the first that fails.
func runBatch(ctx context.Context, hooks []string, stdin io.Reader, run func(context.Context, []string) error) error {
	state, err := io.ReadAll(io.LimitReader(stdin, maxState))
	if err != nil {
		return fmt.Errorf("read the container's state: %w", err)
	}
	for _, encoded := range hooks {
		var arguments []string
		if err := json.Unmarshal([]byte(encoded), &arguments); err != nil || len(arguments) == 0 {
			return fmt.Errorf("hook %q is not a JSON list of a name and arguments: this command is run by specifications that the Mica plugin writes, not by hand", encoded)
		}
		if err := withStdin(state, func() error { return run(ctx, arguments) }); err != nil {
			return fmt.Errorf("hook %s: %w", arguments[0], err)
		}
	}
	return nil
}

// withStdin calls run with content on standard input.
func withStdin(content []byte, run func() error) error {
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	original := os.Stdin
	os.Stdin = reader
	defer func() { os.Stdin = original }()
	written := make(chan error, 1)
	go func() {
		_, err := writer.Write(content)
		written <- errors.Join(ignoreUnread(err), writer.Close())
	}()
	err = run()
	return errors.Join(err, reader.Close(), <-written)
}

// ignoreUnread accepts that a hook does not read all of its input.
func ignoreUnread(err error) error {
	if errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}
