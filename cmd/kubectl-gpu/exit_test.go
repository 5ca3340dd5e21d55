package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestExitCodes(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want int
	}{
		"done":               {nil, 0},
		"the answer is no":   {fmt.Errorf("doctor: %w", negativeAnswer("2 errors found")), 1},
		"there is no answer": {errors.New("connection refused"), 2},
	} {
		if got := exitCode(test.err); got != test.want {
			t.Errorf("%s: exit code %d, want %d", name, got, test.want)
		}
	}
}

// Whatever the command, a cluster that does not answer is said to be that, once.
func TestClustersThatDoNotAnswer(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		says string
	}{
		"refused":      {fmt.Errorf("list: %w", syscall.ECONNREFUSED), "kubectl cluster-info"},
		"no such host": {&url.Error{Op: "Get", Err: &net.DNSError{Name: "nowhere", Err: "no such host"}}, "--context"},
		"too late":     {&url.Error{Op: "Get", Err: context.DeadlineExceeded}, "--context"},
		"unknown user": {apierrors.NewUnauthorized("who are you"), "renew the credentials"},
		"another":      {errors.New("something else"), "something else"},
	} {
		if got := sentence(test.err); !strings.HasPrefix(got, test.err.Error()) || !strings.Contains(got, test.says) {
			t.Errorf("%s: %q does not say %q", name, got, test.says)
		}
	}
}
