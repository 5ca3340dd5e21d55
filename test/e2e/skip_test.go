//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"testing"
)

// skip ends a test that the cluster cannot run, and fails it where that is no excuse.
func skip(t testing.TB, format string, args ...any) {
	t.Helper()
	reason := fmt.Sprintf(format, args...)
	if os.Getenv("MICA_E2E_NO_SKIP") != "" {
		t.Fatalf("this test cannot run, and MICA_E2E_NO_SKIP is set: %s", reason)
	}
	t.Skip("this test cannot run: " + reason)
}
