//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	pollInterval = 100 * time.Millisecond
	// startTimeout bounds what normally takes a second or two, such as a pod's start.
	startTimeout = time.Minute
	// retryTimeout is for pods whose preparation failed: kubelet tries again after 60 to
	// 90 seconds, or when the pod changes.
	retryTimeout = 2 * time.Minute
	// goneTimeout bounds the removal of pods, claims and namespaces.
	goneTimeout = time.Minute
)

// errNever ends a wait at once: what was waited for cannot come any more.
var errNever = errors.New("this cannot succeed any more")

// until calls check until it returns nil, and returns its last error when the context ends
// or when check says that it will never succeed. The error of a check that the end of the context
// has cut short is dropped: it says nothing.
func until(ctx context.Context, check func(context.Context) error) error {
	var last error
	for {
		err := check(ctx)
		if err == nil || errors.Is(err, errNever) {
			return err
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return last
		case <-time.After(pollInterval):
		}
	}
}

// eventually fails the test unless check returns nil in time; what says what should be.
func eventually(t testing.TB, within time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if err := until(ctx, check); err != nil {
		t.Fatalf("%s: not so after %s: %v", what, time.Since(start).Round(time.Millisecond), err)
	}
}

func must(t testing.TB, err error, format string, args ...any) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", fmt.Sprintf(format, args...), err)
	}
}

// mergePatch encodes a merge patch, whose fields are known to be encodable.
func mergePatch(fields map[string]any) ([]byte, error) { return json.Marshal(fields) }

func quantityOf(text string) resource.Quantity { return resource.MustParse(text) }
