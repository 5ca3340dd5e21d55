// Command kubectl-gpu is a plugin of kubectl. It tells which GPUs there are, who has them and how busy
// they are; why a pod waits for one, and where it would go; what in a cluster keeps GPUs from pods. It
// prints ScaledObjects for KEDA, and manifests for the device plugin rewritten for claims. It reads the
// cluster with its user's rights. Only kubectl gpu cordon and uncordon change something there.
package main

import (
	"fmt"
	"os"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/component-base/cli"
)

func main() {
	// Libraries log what they return as well.
	utilruntime.ErrorHandlers = []utilruntime.ErrorHandler{tellWatcher}
	// Not cli.Run: it logs the error, and people who type want a sentence.
	if err := cli.RunNoErrOutput(newCommand()); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "error:", sentence(err))
		os.Exit(exitCode(err))
	}
}
