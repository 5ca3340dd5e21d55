//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// skip ends a test that the cluster cannot run, and fails it if the cluster is known to run all but others.
func skip(t testing.TB, format string, args ...any) {
	t.Helper()
	reason := fmt.Sprintf(format, args...)
	if os.Getenv("MICA_E2E_NO_SKIP") != "" && !slices.Contains(strings.Fields(os.Getenv("MICA_E2E_MAY_SKIP")), t.Name()) {
		t.Fatalf("this test cannot run, MICA_E2E_NO_SKIP is set and MICA_E2E_MAY_SKIP does not name it: %s", reason)
	}
	t.Skip("this test cannot run: " + reason)
}
