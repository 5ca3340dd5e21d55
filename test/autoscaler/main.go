// Command autoscaler-sim simulates Cluster Autoscaler, which is no Go module. It scans the cluster every few seconds, sets
// sizes at the cloud of test/fleet, and writes Events on pods and the status ConfigMap.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mica-gpu/mica/test/autoscaler/scan"
	"github.com/mica-gpu/mica/test/fleet/cloud"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "autoscaler-sim:", err)
		os.Exit(1)
	}
}

type flags struct {
	kubeconfig, cloud string
	interval          time.Duration
	delayAfterAdd     time.Duration
}

func newCommand() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{
		Use:           "autoscaler-sim",
		Short:         "Behave as Cluster Autoscaler does with GPU node groups of EKS",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), f) },
	}
	set := cmd.Flags()
	set.StringVar(&f.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "the cluster, as its administrator")
	set.StringVar(&f.cloud, "cloud", "http://127.0.0.1:8600", "where fleet serves the cloud")
	set.DurationVar(&f.interval, "scan-interval", 5*time.Second, "time between scans")
	set.DurationVar(&f.delayAfterAdd, "scale-down-delay-after-add", 10*time.Minute, "time after a scale-up in which no node is removed")
	return cmd
}

func run(ctx context.Context, f *flags) error {
	if f.interval <= 0 {
		return fmt.Errorf("--scan-interval %s is no interval: give one such as 5s", f.interval)
	}
	config, err := clientcmd.BuildConfigFromFlags("", f.kubeconfig)
	if err != nil {
		return fmt.Errorf("read --kubeconfig: %w: name a readable kubeconfig file", err)
	}
	config.UserAgent = "autoscaler-sim"
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("set up the client of the API server: %w", err)
	}
	machines, err := cloud.NewClient(f.cloud)
	if err != nil {
		return err
	}
	autoscaler := newAutoscaler(client, machines, scan.Options{
		TemplateAge: time.Minute, Backoff: 5 * time.Minute, MaxBackoff: 30 * time.Minute, ScaleDownUnneeded: 10 * time.Minute,
		DelayAfterAdd: f.delayAfterAdd, MaxProvision: 15 * time.Minute, MaxStartup: 15 * time.Minute, PriorityCutoff: -10,
	})
	if err := autoscaler.run(ctx, f.interval); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
