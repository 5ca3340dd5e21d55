// Command eks-sim is a simulator of EKS's node groups, for a controller that is started with
// --eks-endpoint.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mica-gpu/mica/test/ekssim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "eks-sim:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var groups []ekssim.Group
	flags := flag.NewFlagSet("eks-sim", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:0", "address to listen on; it is printed")
	cluster := flags.String("cluster", "sim", "name of the cluster")
	takes := flags.Duration("update-takes", time.Second, "how long an update is in progress")
	flags.Func("nodegroup", "name=NAME,type=p5.48xlarge[,max=5]; may be repeated", func(text string) error {
		g, err := parseGroup(text)
		groups = append(groups, g)
		return err
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	server := ekssim.New(ekssim.Options{Cluster: *cluster, UpdateTakes: *takes, Resized: func(group string, from, to int) {
		fmt.Printf("resized %s %d %d\n", group, from, to)
	}})
	for _, g := range groups {
		server.Add(g)
	}
	return serve(ctx, server, *listen)
}

// serve runs until ctx ends. It ends updates also without calls.
func serve(ctx context.Context, server *ekssim.Server, address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Printf("listening http://%s\n", listener.Addr())
	go func() {
		ticker := time.NewTicker(200 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				server.Settle()
			case <-ctx.Done():
				return
			}
		}
	}()
	h := &http.Server{Handler: server, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		_ = h.Close()
	}()
	if err := h.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func parseGroup(text string) (ekssim.Group, error) {
	g := ekssim.Group{Max: 5, AMIType: "AL2023_x86_64_NVIDIA", CapacityType: "ON_DEMAND"}
	for pair := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(pair, "=")
		var err error
		switch key {
		case "name":
			g.Name = value
		case "type":
			g.InstanceTypes = append(g.InstanceTypes, value)
		case "max":
			g.Max, err = strconv.Atoi(value)
		default:
			err = fmt.Errorf("unknown key %q: use name, type or max", key)
		}
		if err != nil {
			return g, fmt.Errorf("node group %q: %w", text, err)
		}
	}
	if g.Name == "" {
		return g, fmt.Errorf("node group %q has no name: give name=NAME", text)
	}
	return g, nil
}
