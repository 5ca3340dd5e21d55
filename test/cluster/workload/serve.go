package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

// serve is what probes ask and Services lead to, in place of a model's server. Requests that have begun
// when it is told to stop are not waited for.
func serve(port string, stop <-chan os.Signal) error {
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return fmt.Errorf("listening for requests: %w", err)
	}
	server := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }),
		ReadHeaderTimeout: 5 * time.Second,
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	select {
	case <-stop:
		return server.Close()
	case err := <-done:
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return fmt.Errorf("serving: %w", err)
	}
}
