package main

import (
	"testing"
	"testing/fstest"
)

func TestMemoryLimitOfTheContainer(t *testing.T) {
	for text, want := range map[string]int64{"1073741824\n": 966367638, "max\n": 0, "": 0} {
		if got := memoryLimit(fstest.MapFS{"memory.max": {Data: []byte(text)}}); got != want {
			t.Errorf("%q: got %d, want %d", text, got, want)
		}
	}
	if got := memoryLimit(fstest.MapFS{}); got != 0 {
		t.Errorf("without cgroups of version 2: got %d", got)
	}
}
