package journal

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// writerDir, when set, makes the test binary a writer that never ends.
const writerDir = "MICA_JOURNAL_TEST_WRITER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerDir); dir != "" {
		fmt.Fprintln(os.Stderr, writeForEver(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func writeForEver(dir string) error {
	j, err := Open(dir)
	if err != nil {
		return err
	}
	for round := 0; ; round++ {
		uid := fmt.Sprint("claim-", round%4)
		r := record(uid)
		r.Name = fmt.Sprint(round, strings.Repeat("x", round%3000))
		if err := j.Put(context.Background(), r); err != nil {
			return err
		}
		if round%7 == 0 {
			if err := j.Delete(uid); err != nil {
				return err
			}
		}
		fmt.Println(round) // the parent knows by this that writing has begun
	}
}

func TestKilledWriterLeavesNoCorruptRecord(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "claims")
	reader, err := Open(dir)
	must(t, err)
	seen := 0
	for kill := range 12 {
		killWriter(t, dir, func() {
			records, corrupt := list(t, reader)
			if len(corrupt) != 0 {
				t.Errorf("beside a live writer: %v", corrupt)
			}
			seen += len(records)
		}, 3+5*kill)
		if _, corrupt := list(t, reader); len(corrupt) != 0 {
			t.Errorf("after the writer's death: %v", corrupt)
		}
	}
	if seen == 0 {
		t.Error("no record was ever seen")
	}
	leftovers, err := filepath.Glob(filepath.Join(dir, tempPrefix+"*"))
	must(t, err)
	for _, left := range leftovers {
		age(t, reader, filepath.Base(left))
	}
	if _, err := Open(dir); err != nil {
		t.Fatal(err)
	}
	if leftovers, err = filepath.Glob(filepath.Join(dir, tempPrefix+"*")); err != nil || len(leftovers) != 0 {
		t.Errorf("left over: %v, %v", leftovers, err)
	}
}

// killWriter runs a writer, calls look after each of so many writes, and kills it
// with SIGKILL wherever it is then.
func killWriter(t *testing.T, dir string, look func(), writes int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	writer := exec.CommandContext(ctx, os.Args[0], "-test.run=^$")
	writer.Env = append(os.Environ(), writerDir+"="+dir)
	var complaint strings.Builder
	writer.Stderr = &complaint
	out, err := writer.StdoutPipe()
	must(t, err)
	must(t, writer.Start())
	lines := bufio.NewScanner(out)
	for range writes {
		if !lines.Scan() {
			t.Errorf("the writer stopped by itself: %s", complaint.String())
			break
		}
		look()
	}
	if err := writer.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = writer.Wait() // says that it was killed
}
