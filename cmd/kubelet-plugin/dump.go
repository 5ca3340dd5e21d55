package main

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"runtime/pprof"
	"strings"
	"syscall"

	"k8s.io/klog/v2"
)

// maxDump bounds each part of a dump: a node of 8 GPUs in all shapes has 40 KiB.
const maxDump = 256 << 10

// notifyDump asks for SIGUSR2, which ends a process that does not.
func notifyDump() chan os.Signal {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR2)
	return signals
}

// dumpOnSignal logs on each signal, until ctx ends, what the plugin knows and what its
// goroutines do.
func dumpOnSignal(ctx context.Context, signals chan os.Signal, state func(context.Context) string) {
	defer signal.Stop(signals)
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		var goroutines bytes.Buffer
		_ = pprof.Lookup("goroutine").WriteTo(&goroutines, 1) // a buffer takes everything
		log := klog.FromContext(ctx)
		log.Info("State of the plugin, for SIGUSR2", "state", bounded(state(ctx)))
		log.Info("Goroutines of the plugin, for SIGUSR2", "stacks", bounded(goroutines.String()))
	}
}

// bounded keeps whole lines.
func bounded(text string) string {
	if len(text) <= maxDump {
		return text
	}
	return text[:strings.LastIndex(text[:maxDump], "\n")+1] + "(more was cut off)\n"
}
