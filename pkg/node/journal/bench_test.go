package journal

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkPut is what a prepare adds to the node's disk.
func BenchmarkPut(b *testing.B) {
	j := open(b)
	r := record("a")
	for b.Loop() {
		put(b, j, r)
	}
}

// BenchmarkListUnchanged lists as many records as a full node has claims.
func BenchmarkListUnchanged(b *testing.B) {
	j := open(b)
	for i := range 110 {
		put(b, j, record(fmt.Sprint("claim-", i)))
	}
	deadline := time.Now().Add(time.Minute)
	for settled := false; !settled; {
		if time.Now().After(deadline) {
			b.Fatal("the files never settle")
		}
		list(b, j)
		settled = true
		for _, entry := range j.listed {
			settled = settled && entry.identity.settled
		}
	}
	b.ResetTimer()
	for b.Loop() {
		if records, _ := list(b, j); len(records) != 110 {
			b.Fatal(len(records))
		}
	}
}
