package journal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/pkg/node/lock"
)

func TestGetQuarantinesAndThenFindsNothing(t *testing.T) {
	j := open(t)
	writeFile(t, j, "a.json", "")
	_, found, err := j.Get("a")
	var corrupt *Corrupt
	if found || !errors.As(err, &corrupt) || corrupt.ClaimUID != "a" {
		t.Fatalf("Get = %v, %v", found, err)
	}
	want := fmt.Sprintf("the journal file %s is empty; it was moved to %s, and claim a will be prepared again from what is found on the node",
		j.path("a.json"), filepath.Join(j.dir, quarantineDir, "a.json.empty-1"))
	if err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if _, found, err := j.Get("a"); found || err != nil {
		t.Errorf("second Get = %v, %v", found, err)
	}
	put(t, j, record("a"))
	if got, found, err := j.Get("a"); err != nil || !found || !reflect.DeepEqual(got, record("a")) {
		t.Errorf("the claim cannot be recorded anew: %+v, %v, %v", got, found, err)
	}
}

func TestQuarantineKeepsTheNewest(t *testing.T) {
	j := open(t)
	const more = 5
	for i := range quarantineMax + more {
		writeFile(t, j, "a.json", fmt.Sprint(i))
		if _, _, err := j.Get("a"); err == nil {
			t.Fatal("garbage was accepted")
		}
	}
	kept, err := quarantined(j.path(quarantineDir))
	if err != nil {
		t.Fatal(err)
	}
	if len(kept) != quarantineMax || kept[0].number != more+1 {
		t.Errorf("%d files are kept, the oldest is %+v", len(kept), kept[0])
	}
}

func TestForeignFilesInQuarantineStay(t *testing.T) {
	j := open(t)
	if err := os.Mkdir(j.path(quarantineDir), 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, j, filepath.Join(quarantineDir, "notes"), "mine")
	for range quarantineMax + 1 {
		writeFile(t, j, "a.json", "garbage")
		list(t, j)
	}
	if data, err := os.ReadFile(j.path(quarantineDir + "/notes")); err != nil || string(data) != "mine" {
		t.Errorf("%q, %v", data, err)
	}
}

// Between the look that found a file bad and the move, another process may have
// written the claim's record anew.
func TestQuarantineSparesARecordThatHasBecomeGood(t *testing.T) {
	j := open(t)
	put(t, j, record("a"))
	found, err := j.quarantine("a.json")
	if err != nil || found.corrupt != nil || found.record.ClaimUID != "a" {
		t.Errorf("quarantine = %+v, %v", found, err)
	}
	assertFiles(t, j, "a.json")
}

func TestABadFileThatCannotBeMovedIsReportedOnceAndNotUsed(t *testing.T) {
	j := open(t)
	writeFile(t, j, "a.json", "garbage")
	// Another process hangs in the middle of a Put.
	dir, err := os.Open(j.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := lock.File(context.Background(), dir, lock.Shared); err != nil {
		t.Fatal(err)
	}
	records, corrupt := list(t, j)
	if len(records) != 0 || len(corrupt) != 1 || !errors.Is(corrupt[0], errBusy) ||
		!strings.Contains(corrupt[0].Error(), "could not be moved aside") {
		t.Fatalf("List = %v, %v", records, corrupt)
	}
	if records, corrupt := list(t, j); len(records) != 0 || len(corrupt) != 0 {
		t.Errorf("second List = %v, %v", records, corrupt)
	}
	put(t, j, record("a"))
	if records, corrupt := list(t, j); len(records) != 1 || len(corrupt) != 0 {
		t.Errorf("after Put: List = %v, %v", records, corrupt)
	}
}
