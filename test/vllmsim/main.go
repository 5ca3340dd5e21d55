// Command vllmsim serves the metrics of simulated vLLM servers, with the values that a test sets:
//
//	PUT /models/NAME     {"running": 3, "waiting": 12, "cacheUsage": 0.9, "firstToken": 2.5}
//	DELETE /models/NAME  removes the model's servers
//	GET /metrics         has vLLM's metrics, such as vllm:num_requests_waiting{model_name="NAME",engine="0"}
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "vllmsim:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("vllmsim", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8000", "address to serve at")
	if err := flags.Parse(args); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return fmt.Errorf("serve the metrics: %w", err)
	}
	server := &http.Server{Handler: newHandler(), ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the metrics: %w", err)
	}
	return nil
}

// newHandler has no models yet.
func newHandler() http.Handler {
	registry := prometheus.NewRegistry()
	models := newModels(registry)
	metrics := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, request *http.Request) {
		models.serveRequests()
		metrics.ServeHTTP(w, request)
	})
	mux.HandleFunc("PUT /models/{name}", func(w http.ResponseWriter, request *http.Request) {
		decoder := json.NewDecoder(request.Body)
		decoder.DisallowUnknownFields()
		var load Load
		err := decoder.Decode(&load)
		if err == nil {
			err = load.check()
		}
		if err != nil {
			http.Error(w, "set the load of a model: "+err.Error(), http.StatusBadRequest)
			return
		}
		models.set(request.PathValue("name"), load)
	})
	mux.HandleFunc("DELETE /models/{name}", func(_ http.ResponseWriter, request *http.Request) {
		models.remove(request.PathValue("name"))
	})
	return mux
}
