package main

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"runtime/pprof"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/diagnosis"
)

// maxDump bounds each part of a dump: 8 GPUs in all shapes have 40 KiB.
const maxDump = 256 << 10

// notifyDump handles SIGUSR2, which would otherwise end the process.
func notifyDump() chan os.Signal {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR2)
	return signals
}

// dumpOnSignal logs the plugin's state and its goroutines on each signal, until ctx ends.
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

func bounded(text string) string {
	if len(text) <= maxDump {
		return text
	}
	return diagnosis.Lines(text, maxDump) + "(more was cut off)\n"
}
