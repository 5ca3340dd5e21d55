package journal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB) *Journal {
	t.Helper()
	j, err := Open(filepath.Join(t.TempDir(), "claims"))
	must(t, err)
	return j
}

func record(uid string) Record {
	return Record{
		ClaimUID: uid, Namespace: "team-a", Name: "claim-of-" + uid,
		BootID: "5b1ac1a5-3d2c-4c8e-9a0c-0d6c7c9a3e11", State: Prepared,
		Devices: []Device{
			{
				Request: "gpu", Pool: "node-1", Device: "gpu-0", UUID: "GPU-0", Form: gpu.Form{Base: "whole"}, Type: "gpu",
				CDIDeviceIDs: []string{"k8s.gpu.nvidia.com/claim=" + uid + "-gpu-0"}, Steps: []Step{{Name: "disable-mig"}},
			},
			{Request: "look", Pool: "node-1", Device: "gpu-1", UUID: "GPU-1", AdminAccess: true, ShareID: "share", CDIDeviceIDs: []string{"x"}, Form: gpu.Form{Base: "whole"}, Type: "gpu"},
		},
	}
}

func put(t testing.TB, j *Journal, r Record) {
	t.Helper()
	must(t, j.Put(context.Background(), r))
}

// writeFile places content past the journal, as a crash or a hand would.
func writeFile(t testing.TB, j *Journal, name, content string) {
	t.Helper()
	must(t, os.WriteFile(j.path(name), []byte(content), 0o600))
}

func list(t testing.TB, j *Journal) ([]Record, []*Corrupt) {
	t.Helper()
	records, corrupt, err := j.List()
	must(t, err)
	return records, corrupt
}

func uids(records []Record) []string {
	out := []string{}
	for _, r := range records {
		out = append(out, r.ClaimUID)
	}
	return out
}

func TestListSortsByUID(t *testing.T) {
	j := open(t)
	// As file names "a-b.json" sorts before "a.json"; as UIDs "a" comes first.
	for _, uid := range []string{"b", "a-b", "a"} {
		put(t, j, record(uid))
	}
	records, corrupt := list(t, j)
	if want := []string{"a", "a-b", "b"}; !reflect.DeepEqual(uids(records), want) || len(corrupt) != 0 {
		t.Errorf("List = %v, %v; want %v", uids(records), corrupt, want)
	}
}

func TestTalliesAreOfWhatWasListed(t *testing.T) {
	j := open(t)
	begun := record("b")
	begun.State = Intent
	put(t, j, record("a"))
	put(t, j, record("c"))
	put(t, j, begun)
	must(t, os.WriteFile(j.path("d.json"), []byte("damaged"), 0o600))
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	must(t, os.Chtimes(j.path("c.json"), old, old))
	if got := j.Tallies(); len(got) != 0 {
		t.Errorf("got %v before anything was listed", got)
	}
	list(t, j)
	got := j.Tallies()
	size := func(uid string) int64 {
		info, err := os.Stat(j.path(uid + ".json"))
		must(t, err)
		return info.Size()
	}
	if p := got[Prepared]; p.Records != 2 || p.Bytes != size("a")+size("c") || !p.Oldest.Equal(old) {
		t.Errorf("got %+v of what is prepared", p)
	}
	if i, d := got[Intent], got[Damaged]; i.Records != 1 || i.Bytes != size("b") || d.Records != 1 || d.Bytes != 7 {
		t.Errorf("got %+v of what was begun, and %+v of what is damaged", i, d)
	}
}

func TestListSeesWhatAnotherProcessWrote(t *testing.T) {
	mine := open(t)
	theirs, err := Open(mine.dir)
	must(t, err)
	put(t, mine, record("a"))
	list(t, mine)
	changed := record("a")
	// Same size, and probably the same tick of the file system's clock.
	changed.Devices[0].Device = "gpu-7"
	for range 20 {
		put(t, theirs, record("a"))
		put(t, theirs, changed)
		records, _ := list(t, mine)
		if len(records) != 1 || records[0].Devices[0].Device != "gpu-7" {
			t.Fatalf("List = %+v", records)
		}
	}
	put(t, theirs, record("b"))
	must(t, theirs.Delete("a"))
	if records, _ := list(t, mine); !reflect.DeepEqual(uids(records), []string{"b"}) {
		t.Errorf("List = %v", uids(records))
	}
}

func TestListDoesNotReadUnchangedFilesAgain(t *testing.T) {
	j := open(t)
	put(t, j, record("a"))
	past := time.Now().Add(-time.Hour)
	list(t, j)
	// Pretend that the file has been there for long.
	entry := j.listed["a.json"]
	entry.identity.settled = true
	j.listed["a.json"] = entry
	first, _ := list(t, j)
	changed := first[0].Clone()
	changed.Devices[0].Device = "scribbled"
	changed.Devices[0].CDIDeviceIDs[0] = "scribbled"
	changed.Devices[0].Steps[0].Name = "scribbled"
	second, _ := list(t, j)
	if !reflect.DeepEqual(second[0], record("a")) {
		t.Errorf("a change of a clone reached the journal's own copy: %+v", second[0])
	}
	entry = j.listed["a.json"]
	entry.record.Name = "from memory"
	j.listed["a.json"] = entry
	if records, _ := list(t, j); records[0].Name != "from memory" {
		t.Error("an unchanged file was read again")
	}
	must(t, os.Chtimes(j.path("a.json"), past, past))
	if records, _ := list(t, j); records[0].Name == "from memory" {
		t.Error("a touched file was not read again")
	}
}

func TestRefusedRecords(t *testing.T) {
	long := record("a")
	long.Devices[0].CDIDeviceIDs = []string{strings.Repeat("x", maxFileSize)}
	stateless := record("a")
	stateless.State = ""
	for name, tc := range map[string]struct {
		record Record
		want   string
	}{
		"path":     {record("../a"), `"../a" is not the UID of a claim`},
		"empty":    {record(""), `"" is not the UID of a claim`},
		"no state": {stateless, `the state "" is neither "intent" nor "prepared"`},
		"too long": {long, "at most 65536 are allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			j := open(t)
			err := j.Put(context.Background(), tc.record)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Put = %v, want %q", err, tc.want)
			}
			assertFiles(t, j)
		})
	}
	j := open(t)
	if _, _, err := j.Get("../../etc/passwd"); err == nil {
		t.Error("Get takes a path")
	}
	if err := j.Delete("../../etc/passwd"); err == nil {
		t.Error("Delete takes a path")
	}
}

func TestPutOfAnEndedContextWritesNothing(t *testing.T) {
	j := open(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := j.Put(ctx, record("a")); !errors.Is(err, context.Canceled) {
		t.Errorf("Put = %v", err)
	}
	assertFiles(t, j)
}

func TestOpenSaysWhyADirectoryCannotBeUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for _, dir := range []string{file, filepath.Join(file, "below"), "/proc/mica-claims"} {
		_, err := Open(dir)
		if err == nil || !strings.Contains(err.Error(), "mount a writable directory there") || !strings.Contains(err.Error(), dir) {
			t.Errorf("Open(%s) = %v", dir, err)
		}
	}
	if _, err := Open("/proc/self"); err == nil || !strings.Contains(err.Error(), "cannot be written") {
		t.Errorf("Open of a read-only directory = %v", err)
	}
}

func TestOpenRemovesWhatDeadWritersLeft(t *testing.T) {
	j := open(t)
	put(t, j, record("a"))
	const temp = tempPrefix + "a-123"
	writeFile(t, j, temp, `{"schemaVersion":1,"crc`)
	writeFile(t, j, "notes.txt", "not ours")
	reopen(t, j) // the writer may be alive
	assertFiles(t, j, temp, "a.json", "notes.txt")
	age(t, j, temp)
	reopen(t, j)
	assertFiles(t, j, "a.json", "notes.txt")
	if info, err := os.Stat(j.dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory's mode is %v, %v", info.Mode(), err)
	}
}

// age makes a file one that a dead writer has left.
func age(t *testing.T, j *Journal, name string) {
	t.Helper()
	past := time.Now().Add(-2 * deadAfter)
	must(t, os.Chtimes(j.path(name), past, past))
}

func TestConcurrentUse(t *testing.T) {
	j := open(t)
	other, err := Open(j.dir)
	must(t, err)
	var wg sync.WaitGroup
	for worker := range 8 {
		mine := []*Journal{j, other}[worker%2]
		wg.Go(func() {
			for round := range 25 {
				r := record(fmt.Sprintf("claim-%d", worker))
				r.Name = fmt.Sprint(round)
				put(t, mine, r)
				if got, found, err := mine.Get(r.ClaimUID); err != nil || !found || got.Name != r.Name {
					t.Errorf("Get = %+v, %v, %v", got, found, err)
				}
				if round%5 == 4 {
					if err := mine.Delete(r.ClaimUID); err != nil {
						t.Error(err)
					}
				}
				_, corrupt, err := mine.List()
				if err != nil {
					t.Error(err)
				}
				for _, c := range corrupt {
					if !strings.HasPrefix(c.ClaimUID, "bad-") {
						t.Error(c)
					}
				}
			}
		})
		wg.Go(func() { // a writer of garbage, which is removed as it is met
			for round := range 10 {
				name := fmt.Sprintf("bad-%d-%d.json", worker, round)
				writeFile(t, mine, name, "garbage")
				if _, found, err := mine.Get(strings.TrimSuffix(name, extension)); found || !errors.As(err, new(*Corrupt)) {
					t.Errorf("Get = %v, %v", found, err)
				}
				if err := mine.Delete(strings.TrimSuffix(name, extension)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if records, _ := list(t, j); len(records) != 0 {
		t.Errorf("left: %v", uids(records))
	}
}

// assertFiles fails unless exactly these are in the journal's directory.
func assertFiles(t testing.TB, j *Journal, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(j.dir)
	must(t, err)
	got := []string{}
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("the directory holds %v, want %v", got, want)
	}
}

func TestNotAFileIsNotWaitedFor(t *testing.T) {
	j := open(t)
	must(t, syscall.Mkfifo(j.path("a.json"), 0o600))
	must(t, os.Symlink("/dev/zero", j.path("b.json")))
	must(t, os.Mkdir(j.path("c.json"), 0o700))
	records, corrupt := list(t, j)
	if len(records) != 0 || len(corrupt) != 3 {
		t.Fatalf("List = %v, %v", records, corrupt)
	}
	for _, c := range corrupt {
		if c.Detail != "is not a regular file" {
			t.Errorf("%v", c)
		}
	}
	assertFiles(t, j, "a.json", "b.json", "c.json")
}
