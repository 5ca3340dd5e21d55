package main

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
)

func TestBatchRunsHooksInOrderWithTheirInput(t *testing.T) {
	const state = `{"id":"container"}`
	var ran []string
	record := func(_ context.Context, arguments []string) error {
		input, err := io.ReadAll(os.Stdin)
		ran = append(ran, strings.Join(arguments, " ")+" < "+string(input))
		return err
	}
	hooks := []string{`["create-symlinks","--link","a::b"]`, `["noop"]`}
	if err := runBatch(t.Context(), hooks, strings.NewReader(state), record); err != nil {
		t.Fatal(err)
	}
	if want := []string{"create-symlinks --link a::b < " + state, "noop < " + state}; !slices.Equal(ran, want) {
		t.Errorf("ran %q, want %q", ran, want)
	}
}

func TestBatchStopsAtTheFirstFailure(t *testing.T) {
	broken := errors.New("broken")
	var ran []string
	fail := func(_ context.Context, arguments []string) error {
		ran = append(ran, arguments[0])
		if arguments[0] == "b" {
			return broken
		}
		return nil
	}
	err := runBatch(t.Context(), []string{`["a"]`, `["b"]`, `["c"]`}, strings.NewReader(""), fail)
	if !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "hook b:") {
		t.Errorf("got error %v, want one that names hook b", err)
	}
	if !slices.Equal(ran, []string{"a", "b"}) {
		t.Errorf("ran %q, want a and b", ran)
	}
}

// A hook that does not read its input must not block or fail the batch, also
// when the input is larger than a pipe.
func TestBatchToleratesUnreadInput(t *testing.T) {
	ignore := func(context.Context, []string) error { return nil }
	if err := runBatch(t.Context(), []string{`["a"]`, `["b"]`}, strings.NewReader(strings.Repeat("x", 1<<20)), ignore); err != nil {
		t.Error(err)
	}
}

func TestBatchRefusesWhatIsNoHook(t *testing.T) {
	for _, hook := range []string{"", "noop", `{}`, `[]`, `[1]`} {
		err := runBatch(t.Context(), []string{hook}, strings.NewReader(""), func(context.Context, []string) error {
			t.Errorf("hook %q was run", hook)
			return nil
		})
		if err == nil {
			t.Errorf("hook %q was accepted", hook)
		}
	}
}

func TestEveryHookOfNVIDIAIsThere(t *testing.T) {
	root := newCommand(quiet())
	for _, name := range []string{"batch", "update-ldcache", "create-symlinks", "enable-cuda-compat", "disable-device-node-modification", "apply-cuda-memory-limits", "update-application-profile"} {
		if root.Command(name) == nil {
			t.Errorf("subcommand %s is missing", name)
		}
	}
}

func quiet() *logrus.Logger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}
