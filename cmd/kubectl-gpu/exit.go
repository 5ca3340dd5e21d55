package main

import (
	"errors"
	"net"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Exit codes, as those of diff and grep.
const (
	// exitNo: the command has looked, and the answer is one that a script is to notice. Only
	// commands whose help names it end with it.
	exitNo = 1
	// exitFailed: there is no answer. The command line is wrong, there is no cluster or no right,
	// or reading failed.
	exitFailed = 2
)

// no is an answer that scripts are to notice, after its findings were printed.
type no string

func (n no) Error() string { return string(n) }

// exitCode is that of a command which ended with this error.
func exitCode(err error) int {
	var answer no
	switch {
	case err == nil:
		return 0
	case errors.As(err, &answer):
		return exitNo
	}
	return exitFailed
}

// sentence is what a user reads of an error: with what to do about a cluster that does not answer, or
// does not know who asks, whatever the command.
func sentence(err error) string {
	var name *net.DNSError
	switch {
	case utilnet.IsConnectionRefused(err), utilnet.IsTimeout(err), errors.As(err, &name):
		return err.Error() + ": see that the cluster answers (kubectl cluster-info), and that it is the one that you mean (--context)"
	case apierrors.IsUnauthorized(err):
		return err.Error() + ": the cluster does not know you, so renew the credentials of your kubeconfig"
	}
	return err.Error()
}
