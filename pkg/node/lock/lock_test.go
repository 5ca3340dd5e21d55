package lock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	modeVar = "MICA_LOCK_TEST_MODE"
	dirVar  = "MICA_LOCK_TEST_DIR"
)

// The test binary is also the other process of the tests.
func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(modeVar) {
	case "hold":
		err = holdUntilInputEnds(os.Getenv(dirVar))
	case "count":
		err = count(os.Getenv(dirVar), 150)
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func open(t testing.TB, dir string) *Locker {
	t.Helper()
	l, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustLock(t testing.TB, l *Locker, keys ...string) func() {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	unlock, err := l.Lock(ctx, keys...)
	if err != nil {
		t.Fatal(err)
	}
	return unlock
}

// refused returns the error of a Lock that has to time out.
func refused(t testing.TB, l *Locker, keys ...string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	unlock, err := l.Lock(ctx, keys...)
	if err == nil {
		unlock()
		t.Fatalf("the locks %v were given twice", keys)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error does not wrap the context's: %v", err)
	}
	return err
}

func TestLockExcludesWithinAndBetweenLockers(t *testing.T) {
	dir := t.TempDir()
	mine, theirs := open(t, dir), open(t, dir)
	unlock := mustLock(t, mine, "gpu-0", "claim-a")
	if err := refused(t, mine, "gpu-0"); !strings.Contains(err.Error(), `"gpu-0": another call of this process`) {
		t.Error(err)
	}
	if err := refused(t, theirs, "claim-a"); !strings.Contains(err.Error(), `"claim-a": another plugin process holds`) {
		t.Error(err)
	}
	mustLock(t, theirs, "gpu-1")()
	unlock()
	unlock() // a second call gives up nothing that another goroutine took
	mustLock(t, theirs, "claim-a", "gpu-0")()
	mustLock(t, mine, "gpu-0", "gpu-0")() // the same key twice is one lock
}

func TestFailedLockHoldsNothing(t *testing.T) {
	dir := t.TempDir()
	mine, theirs := open(t, dir), open(t, dir)
	unlock := mustLock(t, theirs, "b")
	_ = refused(t, mine, "a", "b", "c")
	mustLock(t, theirs, "a", "c")()
	unlock()
	mustLock(t, mine, "a", "b", "c")()
}

func TestEndedContextTakesNothing(t *testing.T) {
	l := open(t, t.TempDir())
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("the plugin shuts down")
	cancel(cause)
	for range 20 {
		if _, err := l.Lock(ctx, "a"); !errors.Is(err, cause) {
			t.Fatalf("Lock = %v", err)
		}
	}
	if len(l.local.gates) != 0 {
		t.Errorf("keys are left in memory: %v", l.local.gates)
	}
}

func TestNothingIsLeftAfterUnlock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	l := open(t, dir)
	mustLock(t, l, "claim-a", "gpu-0")()
	assertOneFile(t, dir)
	if len(l.local.gates) != 0 {
		t.Errorf("keys are left in memory: %v", l.local.gates)
	}
}

// Locks that are taken after a user has cleaned the directory exclude each other.
func TestAFileThatIsRemovedIsMadeAnew(t *testing.T) {
	dir := t.TempDir()
	mine, theirs := open(t, dir), open(t, dir)
	unlock := mustLock(t, mine, "before")
	if err := os.Remove(filepath.Join(dir, fileName)); err != nil {
		t.Fatal(err)
	}
	held := mustLock(t, mine, "a")
	_ = refused(t, theirs, "a")
	held()
	unlock()
	mustLock(t, theirs, "a", "before")()
	assertOneFile(t, dir)
}

func TestAnyTextIsAKey(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	for _, key := range []string{"", "../a", strings.Repeat("x", 1000)} {
		unlock := mustLock(t, l, "gpu-0", key)
		_ = refused(t, open(t, dir), key)
		unlock()
	}
	assertOneFile(t, dir)
}

func TestUnusableDirectory(t *testing.T) {
	if _, err := Open("/proc/mica-locks"); err == nil || !strings.Contains(err.Error(), "/proc/mica-locks cannot be made") {
		t.Errorf("Open = %v", err)
	}
	dir := t.TempDir()
	l := open(t, dir)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Lock(context.Background(), "a"); err == nil || !strings.Contains(err.Error(), `the lock "a" cannot be taken`) {
		t.Errorf("Lock = %v", err)
	}
}

// Two callers that name the same keys in opposite orders must not deadlock.
func TestManyKeysInAnyOrder(t *testing.T) {
	dir := t.TempDir()
	lockers := []*Locker{open(t, dir), open(t, dir)}
	keys := [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"b", "c"}, {"c", "a"}}
	var inside [256]atomic.Int32
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for range 40 {
				mine := keys[worker%len(keys)]
				unlock := mustLock(t, lockers[worker%2], mine...)
				for _, k := range mine {
					if n := inside[k[0]].Add(1); n != 1 {
						t.Errorf("%d holders of %q", n, k)
					}
				}
				for _, k := range mine {
					inside[k[0]].Add(-1)
				}
				unlock()
			}
		})
	}
	wg.Wait()
	assertOneFile(t, dir)
}

func TestLockOfAKilledProcessIsFree(t *testing.T) {
	dir := t.TempDir()
	holder := child(t, "hold", dir)
	if _, err := holder.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the holder said %q: %v", line, err)
	}
	l := open(t, dir)
	if err := refused(t, l, "key"); !strings.Contains(err.Error(), "another plugin process holds") {
		t.Error(err)
	}
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = holder.Wait() // says that it was killed
	mustLock(t, l, "key")()
	assertOneFile(t, dir)
}

// The lock file is removed and made anew again and again here: were a lock on a
// removed file taken for good, two processes would be inside at once and counts
// would be lost.
func TestProcessesExcludeEachOtherWhileLockFilesComeAndGo(t *testing.T) {
	dir := t.TempDir()
	const processes = 4
	var wg sync.WaitGroup
	for range processes {
		counter := child(t, "count", dir)
		wg.Go(func() {
			if out, err := counter.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	data, err := os.ReadFile(filepath.Join(dir, "count"))
	if want := fmt.Sprint(processes * 150); err != nil || string(data) != want {
		t.Errorf("counted to %q, want %s: %v", data, want, err)
	}
}

func child(t *testing.T, mode, dir string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), modeVar+"="+mode, dirVar+"="+dir)
	return cmd
}

func holdUntilInputEnds(dir string) error {
	l, err := Open(dir)
	if err != nil {
		return err
	}
	unlock, err := l.Lock(context.Background(), "key")
	if err != nil {
		return err
	}
	defer unlock()
	fmt.Println("held")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// count adds to a number in a file, which goes wrong without a lock.
func count(dir string, times int) error {
	l, err := Open(dir)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "count")
	for range times {
		unlock, err := l.Lock(context.Background(), "key")
		if err != nil {
			return err
		}
		n := 0
		if data, err := os.ReadFile(path); err == nil {
			if _, err := fmt.Sscan(string(data), &n); err != nil {
				return err
			}
		}
		if err := os.WriteFile(path, fmt.Append(nil, n+1), 0o600); err != nil {
			return err
		}
		if n%10 == 0 {
			_ = os.Remove(filepath.Join(dir, fileName)) // another process may have done it
		}
		unlock()
	}
	return nil
}

func assertOneFile(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("in the directory are %v, want one file: %v", entries, err)
	}
}
