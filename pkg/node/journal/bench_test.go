package journal

import (
	"context"
	"fmt"
	"sync/atomic"
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

func BenchmarkPutEightClaimsAtOnce(b *testing.B) {
	j := open(b)
	var worker atomic.Int32
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		r := record(fmt.Sprint("claim-", worker.Add(1)))
		for pb.Next() {
			if err := j.Put(context.Background(), r); err != nil {
				b.Error(err)
			}
		}
	})
}

func BenchmarkGet(b *testing.B) {
	j := open(b)
	put(b, j, record("a"))
	for b.Loop() {
		if _, _, err := j.Get("a"); err != nil {
			b.Fatal(err)
		}
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
