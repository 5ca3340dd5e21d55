package main

import (
	"errors"
	"fmt"
	"testing"
)

func TestExitCodes(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want int
	}{
		"done":               {nil, 0},
		"the answer is no":   {fmt.Errorf("doctor: %w", no("2 errors found")), 1},
		"there is no answer": {errors.New("connection refused"), 2},
	} {
		if got := exitCode(test.err); got != test.want {
			t.Errorf("%s: exit code %d, want %d", name, got, test.want)
		}
	}
}
