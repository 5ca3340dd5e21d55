// Command kubectl-gpu is a plugin of kubectl: kubectl gpu explain pod/NAME says why a pod that
// asks for GPUs waits, and which node group would have what it asks for; kubectl gpu scaledobject
// prints the objects by which KEDA scales a workload with GPUs. It reads the cluster with its
// user's rights. Only kubectl gpu cordon and uncordon change something there.
package main

import (
	"fmt"
	"os"

	"k8s.io/component-base/cli"
)

func main() {
	// Not cli.Run: it logs the error, and people who type want a sentence.
	if err := cli.RunNoErrOutput(newCommand()); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(exitCode(err))
	}
}
