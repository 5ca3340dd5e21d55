// Command redis serves Redis' protocol from memory (github.com/alicebob/miniredis) to KEDA's scaler, with
// lists that a test fills:
//
//	PUT /lists/NAME  {"length": 50}
//
// It is a module of its own, so that the product does not depend on miniredis.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "redis:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("redis", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:6379", "address to serve Redis' protocol at")
	control := flags.String("control", "127.0.0.1:8000", "address at which lists are filled")
	if err := flags.Parse(args); err != nil {
		return err
	}
	server := miniredis.NewMiniRedis()
	if err := server.StartAddr(*listen); err != nil {
		return fmt.Errorf("serve Redis at %s: %w", *listen, err)
	}
	defer server.Close()
	fill := &http.Server{Addr: *control, Handler: newHandler(server), ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = fill.Close() })
	defer stop()
	if err := fill.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the lists at %s: %w", *control, err)
	}
	return nil
}

// mostMessages bounds the memory of a list.
const mostMessages = 100_000

func newHandler(server *miniredis.Miniredis) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /lists/{name}", func(w http.ResponseWriter, request *http.Request) {
		var list struct{ Length int }
		decoder := json.NewDecoder(request.Body)
		decoder.DisallowUnknownFields()
		err := decoder.Decode(&list)
		if err == nil && (list.Length < 0 || list.Length > mostMessages) {
			err = fmt.Errorf("its length is from 0 to %d", mostMessages)
		}
		if err != nil {
			http.Error(w, "fill a list: "+err.Error(), http.StatusBadRequest)
			return
		}
		server.Del(request.PathValue("name"))
		if list.Length > 0 {
			_, err = server.Push(request.PathValue("name"), make([]string, list.Length)...)
		}
		if err != nil {
			http.Error(w, "fill a list: "+err.Error(), http.StatusInternalServerError)
		}
	})
	return mux
}
