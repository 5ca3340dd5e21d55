//go:build e2e

package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"
)

// under is the installed driver that all tests share.
var under *installation

// parallelTests is how many tests run at once unless -parallel says otherwise: they wait
// for the cluster and need no processor of their own.
const parallelTests = "12"

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

// run returns the exit status of the suite: also that of a suite that passed and left
// something behind.
func run(m *testing.M) int {
	if !given("test.parallel") {
		if err := flag.Set("test.parallel", parallelTests); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var err error
	if under, err = connect(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
		return 1
	}
	fmt.Printf("e2e: driver %s on node %s with %d GPUs, %d in shares and %d partitions of GPUs, plugin %s\n",
		under.driver, under.node, len(under.devices), len(under.shares), len(under.partitions), under.plugin)
	status := m.Run()
	if err := nothingLeft(); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: the tests left something behind: %v\n", err)
		return 1
	}
	return status
}

func given(name string) bool {
	found := false
	flag.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

// nothingLeft waits until the driver holds no claim that it did not hold before the tests.
func nothingLeft() error {
	if under.uninstalled {
		return nil // the last test has looked itself
	}
	// Hundreds of namespaces are deleted one after the other, and the last tests have not waited for theirs.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return errors.Join(
		until(ctx, func(ctx context.Context) error { return under.expectNoObjects(ctx) }),
		until(ctx, func(ctx context.Context) error { return under.expectPreparedClaims(ctx) }),
		until(ctx, func(ctx context.Context) error { return under.expectNodeMatchesClaims(ctx) }),
		until(ctx, func(ctx context.Context) error { return under.expectNoInstances(ctx) }),
		until(ctx, func(ctx context.Context) error { return under.expectNoShares(ctx) }),
	)
}
