package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/sample"
	"github.com/mica-gpu/mica/test/fixture"
)

// half is a meter of a device half of whose memory is taken.
type half struct{}

func (half) Read() (gpu.Usage, error) {
	return gpu.Usage{Memory: &gpu.MemoryUsage{Used: 4, Total: 8}}, nil
}
func (half) Sense() (gpu.Sensors, error) { return gpu.Sensors{Power: ptr.To(70.5)}, nil }
func (half) Close() error                { return nil }

func TestDevicesAreAmongTheMetrics(t *testing.T) {
	samples := sample.New()
	samples.Set([]sample.Device{{Name: "gpu-0", GPU: "GPU-a", UUID: "GPU-a", Claims: []string{"claim"}, Pods: []sample.Pod{{Namespace: "ml", Name: "p"}}}})
	units := sample.Units([]gpu.GPU{{Index: 1, Minor: 3, UUID: "GPU-a", ProductName: "NVIDIA H100"}})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- serveMetrics(ctx, listener, []metrics.StableCollector{samples}) }()
	go func() {
		_ = samples.Run(ctx, sample.Hardware{ // it ends with ctx
			Open:  func(string) sample.Meter { return half{} },
			Units: func() []sample.Unit { return units },
			Idle:  func() {},
		})
		done <- nil
	}()
	fixture.Eventually(t, "the metrics", func() error {
		answer, err := http.Get("http://" + listener.Addr().String() + "/metrics")
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		text, err := io.ReadAll(answer.Body)
		for _, want := range []string{
			`mica_device_memory_used_bytes{device="gpu-0"} 4`,
			`mica_gpu_power_watts{GPU_I_ID="",GPU_I_PROFILE="",UUID="GPU-a",device="nvidia3",gpu="1",modelName="NVIDIA H100",namespace="ml",pod="p"} 70.5`,
			"process_resident_memory_bytes",
			`mica_claim_operation_duration_seconds_count{operation="prepare",result="error"} `,
			`mica_claim_operation_duration_seconds_bucket{operation="unprepare",result="ok",le="0.001"} `,
			"mica_published_devices ", "mica_prepared_claims ", "mica_last_successful_publish_timestamp_seconds ",
		} {
			if !strings.Contains(string(text), want) {
				return fmt.Errorf("no %s in %s (%w)", want, text, err)
			}
		}
		return err
	})
	cancel()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestPortsThatAreServed(t *testing.T) {
	for port, want := range map[int]bool{-1: false, 0: true} {
		var group errgroup.Group
		served := false
		must(t, startServer(t.Context(), &group, "nothing", "port", port, func(_ context.Context, listener net.Listener) error {
			served = true
			return listener.Close()
		}))
		if err := group.Wait(); err != nil || served != want {
			t.Errorf("port %d is served: %t, %v; want %t", port, served, err, want)
		}
	}
}
