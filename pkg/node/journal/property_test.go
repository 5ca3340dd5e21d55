package journal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// The journal against a map, under random operations of two processes, crashes
// that leave half a temporary file, and damage to files in place.
func TestJournalBehavesLikeAMap(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 0))
			first := open(t)
			journals := []*Journal{first, reopen(t, first)}
			model := map[string]Record{}
			for step := range 120 {
				j := journals[rng.IntN(2)]
				uid := fmt.Sprintf("claim-%d", rng.IntN(6))
				switch op := rng.IntN(10); {
				case op < 4:
					r := randomRecord(rng, uid)
					put(t, j, r)
					model[uid] = r
				case op < 6:
					must(t, j.Delete(uid))
					delete(model, uid)
				case op < 7:
					half, err := Encode(randomRecord(rng, uid))
					must(t, err)
					writeFile(t, j, fmt.Sprintf("%s%s-%d", tempPrefix, uid, step), string(half[:rng.IntN(len(half))]))
				case op < 8:
					journals[rng.IntN(2)] = reopen(t, j)
				case op < 9:
					whole, err := Encode(randomRecord(rng, uid))
					must(t, err)
					// Without its last two bytes, '}' and newline, it is truncated.
					writeFile(t, j, uid+extension, string(whole[:rng.IntN(len(whole)-2)]))
					delete(model, uid)
				}
				compare(t, j, uid, model)
			}
		})
	}
}

func reopen(t *testing.T, j *Journal) *Journal {
	t.Helper()
	again, err := Open(j.dir)
	must(t, err)
	return again
}

func compare(t *testing.T, j *Journal, uid string, model map[string]Record) {
	t.Helper()
	records, _ := list(t, j)
	got := map[string]Record{}
	for _, r := range records {
		got[r.ClaimUID] = r
	}
	if !reflect.DeepEqual(got, model) {
		t.Fatalf("List: got %+v\nwant %+v", got, model)
	}
	want, exists := model[uid]
	one, found, err := j.Get(uid)
	if errors.As(err, new(*Corrupt)) {
		err = nil // as good as none
	}
	if err != nil || found != exists || !reflect.DeepEqual(one, want) {
		t.Fatalf("Get(%s) = %+v, %v, %v\nwant %+v, %v", uid, one, found, err, want, exists)
	}
}

func randomRecord(rng *rand.Rand, uid string) Record {
	r := Record{ClaimUID: uid, Namespace: "ns", Name: fmt.Sprint(rng.Uint32()), PodClaim: []string{"", "gpu"}[rng.IntN(2)], BootID: "boot", State: Intent}
	if rng.IntN(2) == 0 {
		r.State = Prepared
	}
	for i := range 1 + rng.IntN(9) {
		r.Devices = append(r.Devices, Device{
			Request: "r", Pool: "pool", Device: fmt.Sprint("gpu-", i), UUID: fmt.Sprint("GPU-", rng.Uint32()),
			AdminAccess: rng.IntN(4) == 0, CDIDeviceIDs: []string{fmt.Sprint("k8s/claim=", i)}, Part: rng.Float64(),
			Form: gpu.Form{
				Base: []string{"whole", "partition", "later"}[rng.IntN(3)], Shares: rng.IntN(3),
				Placement: gpu.Placement{ProfileID: rng.IntN(3), Start: rng.IntN(3), Size: rng.IntN(3), InstanceID: rng.IntN(3)},
			},
			Type: "t", PartUUID: []string{"", "MIG-1"}[rng.IntN(2)], ShareID: []string{"", "share"}[rng.IntN(2)],
			Steps: [][]Step{nil, {{Name: "a"}}, {{Name: "b", Data: []byte(`{"x":[1,2.50]}`)}, {Name: "c"}}}[rng.IntN(3)],
		})
	}
	return r
}
