// Command kubectl-gpu is a plugin of kubectl. It shows which GPUs there are, which claims have them and how busy they are;
// why a pod waits for one, and where it would go; and what in a cluster keeps GPUs from pods. It prints ScaledObjects for
// KEDA. It reads the cluster with its user's rights. Only kubectl gpu cordon and uncordon change something there.
package main

import (
	"fmt"
	"os"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/component-base/cli"
)

func main() {
	utilruntime.ErrorHandlers = nil // libraries log errors that they return as well
	// Not cli.Run, which logs the error: users read a sentence.
	if err := cli.RunNoErrOutput(newCommand()); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "error:", sentence(err))
		os.Exit(exitCode(err))
	}
}
