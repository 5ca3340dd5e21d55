package main

import (
	"context"
	"strings"
	"syscall"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/mica-gpu/mica/test/fixture"
)

func TestASignalDumpsStateAndGoroutines(t *testing.T) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	signals, done := notifyDump(), make(chan struct{})
	go func() {
		defer close(done)
		dumpOnSignal(ctx, signals, func(context.Context) string { return "claim a/b has gpu-0\n" + strings.Repeat("more\n", maxDump) })
	}()
	must(t, syscall.Kill(syscall.Getpid(), syscall.SIGUSR2))
	logged := func() string { return logger.GetSink().(ktesting.Underlier).GetBuffer().String() }
	fixture.Eventually(t, "the dump", func() error {
		for _, want := range []string{"claim a/b has gpu-0", "(more was cut off)", "TestASignalDumpsStateAndGoroutines"} {
			if !strings.Contains(logged(), want) {
				return errLacks(want)
			}
		}
		return nil
	})
	cancel()
	<-done
}

type errLacks string

func (e errLacks) Error() string { return "the log lacks " + string(e) }
