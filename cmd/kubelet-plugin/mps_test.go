package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/mica-gpu/mica/pkg/node/mps"
	"github.com/mica-gpu/mica/test/fixture"
)

func TestMPSRefuses(t *testing.T) {
	root := t.TempDir()
	for name, tc := range map[string]struct {
		arguments []string
		want      []string
	}{
		"no directory":              {[]string{"--mps-root="}, []string{"no directory for MPS", "--mps-root"}},
		"the wrong shared memory":   {[]string{"--mps-root=" + root, "--mps-shm=" + t.TempDir()}, []string{"is not the directory " + root + "/shm", "mount it there"}},
		"a port too high":           {[]string{"--mps-root=" + root, "--healthcheck-port=65536"}, []string{"--healthcheck-port is 65536"}},
		"a directory that is none":  {[]string{"--mps-root=" + write(t, "file", ""), "--mps-shm=", "--healthcheck-port=-1"}, []string{"make the directories of MPS", "choose a writable --mps-root"}},
		"a flag of the plugin only": {[]string{"--node-name=a"}, []string{"unknown flag: --node-name"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := execute(t, append([]string{"mps"}, tc.arguments...)...)
			fixture.Sentence(t, err, tc.want...)
		})
	}
}

// daemon stands in for a control daemon. It answers every question with 100 percent.
const daemon = `#!/bin/sh
if [ "$1" = -f ]; then
	echo "$$" >"$CUDA_MPS_PIPE_DIRECTORY/pid"
	exec sleep 60
fi
read -r command _
[ -f "$CUDA_MPS_PIPE_DIRECTORY/pid" ] || exit 1
case $command in
quit) kill "$(cat "$CUDA_MPS_PIPE_DIRECTORY/pid")" ;;
*) echo 100.0 ;;
esac
`

// The command as the chart runs it, without the hardware.
func TestMPSSupervises(t *testing.T) {
	dir, err := os.MkdirTemp("", "mica-") // short, as sockets need
	must(t, err)
	defer os.RemoveAll(dir)
	driver := filepath.Join(dir, "driver")
	for path, content := range map[string]string{"usr/bin/nvidia-cuda-mps-control": daemon, "usr/lib64/libcuda.so.1": ""} {
		must(t, os.MkdirAll(filepath.Join(driver, filepath.Dir(path)), 0o755))
		must(t, os.WriteFile(filepath.Join(driver, path), []byte(content), 0o755))
	}
	root := filepath.Join(dir, "mps")
	must(t, os.MkdirAll(filepath.Join(root, "shm"), 0o755))
	port := freePort(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		command := newCommand()
		command.SetArgs([]string{"mps", "--mps-root=" + root, "--mps-shm=" + root + "/shm", "--container-driver-root=" + driver, "--healthcheck-port=" + port})
		done <- command.ExecuteContext(ctx)
	}()
	fixture.Eventually(t, "readiness", func() error { return healthy(t, port, "readiness") })
	if err := errors.Join(healthy(t, port, ""), healthy(t, port, "liveness")); err != nil {
		t.Error(err)
	}
	if err := healthy(t, port, "happiness"); err == nil || !strings.Contains(err.Error(), "unknown service") {
		t.Errorf("got %v", err)
	}
	daemons := mps.NewDirectory(root)
	must(t, daemons.Start(t.Context(), mps.Daemon{ID: "gpu-0-mps", Devices: []string{"GPU-0"}}))
	if err := daemons.Stop(t.Context(), "gpu-0-mps"); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
}

func healthy(t *testing.T, port, service string) error {
	t.Helper()
	conn, err := grpc.NewClient("127.0.0.1:"+port, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	response, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service})
	if err != nil {
		return err
	}
	if response.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("service %q is %v", service, response.GetStatus())
	}
	return nil
}
