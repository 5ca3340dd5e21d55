//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"testing"

	"github.com/mica-gpu/mica/pkg/kubectl/doctor"
)

// examine runs kubectl gpu doctor. Its exit code is 1 if, and only if, it finds errors.
func examine(ctx context.Context) (doctor.Report, error) {
	var report doctor.Report
	out, notes, err := tryGPUCommand(ctx, "doctor", "-o", "json")
	var ended *exec.ExitError
	if err != nil && (!errors.As(err, &ended) || ended.ExitCode() != 1) {
		return report, fmt.Errorf("%w: %s", err, notes)
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return report, err
	}
	if (err != nil) != (report.Count(doctor.Error) > 0) {
		return report, errors.Join(err, fmt.Errorf("its status is not that of what it found: %+v", report.Findings))
	}
	return report, nil
}

// ofInstallation are the checks of state that no test changes for long.
var ofInstallation = []string{
	"resource-api", "mica-kinds", "feature-gates", "plugin-installed", "plugin-selects-node", "plugin-running", "pool-complete",
	"device-plugin", "two-drivers", "container-runtime", "accelerator-label", "driver-version", "taint-value",
}

// The tests' cluster is healthy, except for what other tests change.
func TestDoctorFindsTheClusterHealthy(t *testing.T) {
	t.Parallel()
	eventually(t, startTimeout, "the doctor finds the node and the API server healthy", func(ctx context.Context) error {
		report, err := examine(ctx)
		if err != nil {
			return err
		}
		if len(report.Unseen) > 0 {
			return fmt.Errorf("it could not see %+v", report.Unseen)
		}
		for _, f := range report.Findings {
			ours := slices.Contains([]string{"apiserver", "daemonsets", "node/" + under.node}, f.Object)
			if ours && slices.Contains(ofInstallation, f.Check) {
				return fmt.Errorf("it found %+v", f)
			}
		}
		return nil
	})
}
