// kedaserver is the controller's server for KEDA, with answers that a test writes. It is a process of its own
// because KEDA's package of the messages cannot be linked with Mica's, and because a test kills it. It prints
// its address once it listens, and "ok" for each line of its standard input, which is a Script in JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/mica-gpu/mica/api/externalscaler"
	"github.com/mica-gpu/mica/pkg/elastic/keda"
)

// Script has the answers from now on.
type Script struct {
	Active bool
	// Metric is the name of the one metric.
	Metric        string
	Value, Target float64
	// Error, if not empty, is the text of the answer. The word metadata answers with the trigger's metadata,
	// and panic panics.
	Error string
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "kedaserver:", err)
		os.Exit(1)
	}
}

func run() error {
	options := keda.Options{
		Clock:     clock.RealClock{},
		Listening: func(address net.Addr) { fmt.Println(address) },
	}
	flag.StringVar(&options.Address, "address", "127.0.0.1:0", "host:port to listen on")
	flag.StringVar(&options.TLS.Certificate, "certificate", "", "the server's certificate")
	flag.StringVar(&options.TLS.Key, "key", "", "its key")
	flag.StringVar(&options.TLS.ClientCA, "client-ca", "", "the CA of the clients' certificates")
	first := flag.String("script", "{}", "the first Script")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	a := &answers{changed: make(chan struct{})}
	if err := a.follow([]byte(*first)); err != nil {
		return err
	}
	go func() {
		if err := a.read(bufio.NewScanner(os.Stdin)); err != nil {
			fmt.Fprintln(os.Stderr, "kedaserver:", err)
		}
		stop() // the test has ended
	}()
	server, err := keda.NewServer(options, a)
	if err != nil {
		return err
	}
	return server.Start(klog.NewContext(ctx, klog.Background()))
}

// answers are those of the last script.
type answers struct {
	mu      sync.Mutex
	script  Script
	changed chan struct{} // closed when there is another script
}

func (a *answers) read(lines *bufio.Scanner) error {
	for lines.Scan() {
		if err := a.follow(lines.Bytes()); err != nil {
			return err
		}
		fmt.Println("ok")
	}
	return lines.Err()
}

func (a *answers) follow(line []byte) error {
	var script Script
	if err := json.Unmarshal(line, &script); err != nil {
		return fmt.Errorf("read the script %q: %w", line, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.script = script
	close(a.changed)
	a.changed = make(chan struct{})
	return nil
}

func (a *answers) current(ref *externalscaler.ScaledObjectRef) (Script, <-chan struct{}, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.script.Error == "panic":
		panic("as the script says")
	case a.script.Error == "metadata":
		return a.script, a.changed, fmt.Errorf("%s/%s has %v", ref.GetNamespace(), ref.GetName(), ref.GetScalerMetadata())
	case a.script.Error != "":
		return a.script, a.changed, status.Error(codes.InvalidArgument, a.script.Error)
	case a.script.Metric == "":
		return a.script, a.changed, errors.New("there is no script yet")
	}
	return a.script, a.changed, nil
}

func (s Script) spec() *externalscaler.GetMetricSpecResponse {
	return &externalscaler.GetMetricSpecResponse{MetricSpecs: []*externalscaler.MetricSpec{
		{MetricName: s.Metric, TargetSize: int64(s.Target), TargetSizeFloat: s.Target},
	}}
}

// Spec implements the answers of package keda.
func (a *answers) Spec(_ context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.GetMetricSpecResponse, error) {
	script, _, err := a.current(ref)
	return script.spec(), err
}

// Metrics implements the answers of package keda.
func (a *answers) Metrics(_ context.Context, request *externalscaler.GetMetricsRequest) (*externalscaler.GetMetricsResponse, error) {
	script, _, err := a.current(request.GetScaledObjectRef())
	if err != nil {
		return nil, err
	}
	if request.GetMetricName() != script.Metric {
		return nil, fmt.Errorf("asked for metric %q, which the spec does not have", request.GetMetricName())
	}
	return &externalscaler.GetMetricsResponse{MetricValues: []*externalscaler.MetricValue{
		{MetricName: script.Metric, MetricValue: int64(script.Value), MetricValueFloat: script.Value},
	}}, nil
}

// Active implements the answers of package keda.
func (a *answers) Active(_ context.Context, ref *externalscaler.ScaledObjectRef) (bool, error) {
	script, _, err := a.current(ref)
	return script.Active, err
}

// WatchActive implements the answers of package keda.
func (a *answers) WatchActive(ctx context.Context, ref *externalscaler.ScaledObjectRef, send func(bool) error) error {
	return a.watch(ctx, ref, func(s Script) error { return send(s.Active) })
}

// WatchSpec implements the answers of package keda.
func (a *answers) WatchSpec(ctx context.Context, ref *externalscaler.ScaledObjectRef, send func(*externalscaler.GetMetricSpecResponse) error) error {
	return a.watch(ctx, ref, func(s Script) error { return send(s.spec()) })
}

func (a *answers) watch(ctx context.Context, ref *externalscaler.ScaledObjectRef, send func(Script) error) error {
	for {
		script, changed, err := a.current(ref)
		if err != nil {
			return err
		}
		if err := send(script); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
