package journal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
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
					if err := j.Delete(uid); err != nil {
						t.Fatal(err)
					}
					delete(model, uid)
				case op < 7:
					half, err := encode(randomRecord(rng, uid))
					if err != nil {
						t.Fatal(err)
					}
					writeFile(t, j, fmt.Sprintf("%s%s-%d", tempPrefix, uid, step), string(half[:rng.IntN(len(half))]))
				case op < 8:
					journals[rng.IntN(2)] = reopen(t, j)
				case op < 9:
					whole, err := encode(randomRecord(rng, uid))
					if err != nil {
						t.Fatal(err)
					}
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
	if err != nil {
		t.Fatal(err)
	}
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
	for i := range rng.IntN(9) {
		device := Device{
			Request: "r<&>", Pool: "pool", Device: fmt.Sprint("gpu-", i), UUID: fmt.Sprint("GPU-", rng.Uint32()),
			AdminAccess: rng.IntN(4) == 0, CDIDeviceIDs: []string{fmt.Sprint("k8s/claim=", i)},
			Partition: randomPartition(rng), Shape: []string{"whole", "partition", "later"}[rng.IntN(3)], Type: "t",
		}
		if rng.IntN(2) == 0 {
			share(rng, &device)
		}
		r.Devices = append(r.Devices, device)
	}
	return r
}

// randomPartition may be of no, an intended, a made or somebody else's partition.
func randomPartition(rng *rand.Rand) Partition {
	if rng.IntN(2) == 0 {
		return Partition{}
	}
	p := Partition{ProfileID: rng.IntN(68), Start: rng.IntN(12), Size: 1 + rng.IntN(12), Foreign: rng.IntN(4) == 0}
	if p.Foreign || rng.IntN(2) == 0 {
		p.UUID, p.InstanceID, p.ComputeID = fmt.Sprint("MIG-", rng.Uint32()), rng.IntN(15), rng.IntN(7)
	}
	return p
}

// share makes it a share, or a device that a claim's own pods share.
func share(rng *rand.Rand, device *Device) {
	if rng.IntN(2) == 0 {
		device.Shares, device.ShareID = 2+rng.IntN(127), fmt.Sprint("share-", rng.Uint32())
	}
	if rng.IntN(2) == 0 {
		device.Interval = []string{"Short", "Medium", "Long"}[rng.IntN(3)]
		return
	}
	device.MPS = MPS{
		Daemon: device.Device, ComputeMode: []string{"", "Default", "Prohibited"}[rng.IntN(3)],
		MemoryBytes: rng.Uint64N(1 << 40), Cores: rng.IntN(101), MultiUser: rng.IntN(2) == 0,
	}
}
