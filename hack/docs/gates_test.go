package docs

import (
	"errors"
	"os/exec"
	"testing"
)

// removedGates are feature gates that Kubernetes has removed: a component that gets one does not start.
// DynamicResourceAllocation went in 1.38 (kubernetes/kubernetes#141946).
const removedGates = `DynamicResourceAllocation`

// Scripts, charts, pages, the local cluster and that of kind set no gate that is gone.
func TestNoFileSetsARemovedFeatureGate(t *testing.T) {
	command := exec.Command("git", "grep", "--untracked", "--line-number", "--extended-regexp", "("+removedGates+`)["'\\]*[=:] *["'\\]*(true|false|\$)`)
	command.Dir = root
	out, err := command.CombinedOutput()
	var ended *exec.ExitError
	switch {
	case err == nil:
		t.Errorf("remove the feature gate, which a newer Kubernetes refuses:\n%s", out)
	case !errors.As(err, &ended) || ended.ExitCode() != 1: // 1: no match
		t.Fatalf("%v: %s", err, out)
	}
}
