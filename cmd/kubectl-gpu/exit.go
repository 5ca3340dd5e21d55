package main

import "errors"

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
