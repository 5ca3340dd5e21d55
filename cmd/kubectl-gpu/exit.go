package main

import (
	"errors"
	"net"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Exit codes, as in diff and grep.
const (
	// exitNo is for an answer that scripts check. Only commands whose help names it return it.
	exitNo = 1
	// exitFailed: there is no answer, because the command line is wrong, a right is missing or reading failed.
	exitFailed = 2
)

// negativeAnswer is the error of a command that has printed its answer and ends with exitNo.
type negativeAnswer string

func (n negativeAnswer) Error() string { return string(n) }

// exitCode is the exit code for a command's error.
func exitCode(err error) int {
	var answer negativeAnswer
	switch {
	case err == nil:
		return 0
	case errors.As(err, &answer):
		return exitNo
	}
	return exitFailed
}

// sentence is the error for the user. For a cluster that does not answer or rejects the credentials, it adds what to do.
func sentence(err error) string {
	var name *net.DNSError
	switch {
	case utilnet.IsConnectionRefused(err), utilnet.IsTimeout(err), errors.As(err, &name):
		return err.Error() + ": check that the cluster answers (kubectl cluster-info), and that it is the right one (--context)"
	case apierrors.IsUnauthorized(err):
		return err.Error() + ": renew the credentials of your kubeconfig"
	}
	return err.Error()
}
