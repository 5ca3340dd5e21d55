// Command nvml-sim simulates a machine with NVIDIA GPUs: it serves NVML to the
// library that lies in the driver root it emits, and makes things happen to the
// GPUs that only hardware and drivers do.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "nvml-sim:", err)
		os.Exit(1)
	}
}
