// Command cluster builds and runs a real Kubernetes cluster on one Linux
// machine: a control plane and a node with kubelet, containerd and runc, all
// from their Go modules.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

func main() {
	err := newCommand().ExecuteContext(context.Background())
	var exit exitStatus
	switch {
	case err == nil:
	case errors.As(err, &exit):
		if err.Error() != exit.Error() {
			fmt.Fprintln(os.Stderr, "cluster:", err)
		}
		os.Exit(int(exit))
	default:
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "cluster",
		Short:         "A real Kubernetes cluster on this machine, built from Go modules",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(
		newUpCommand(), newDownCommand(), newRunCommand(), newInfoCommand(),
		newStatusCommand(), newComponentCommand("restart", "Kill a component of the node and start it again"),
		newComponentCommand("stop", "Kill a component of the node, until start"),
		newComponentCommand("start", "Start a component that was stopped"),
		newBuildCommand(), newToolCommand(), newImageCommand(), newLoadCommand(), newTagCommand(),
		newKeepCommand(), newInitCommand(), newSuperviseCommand(),
	)
	return root
}
