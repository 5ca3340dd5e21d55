package prepare

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
)

// A crash is a panic after one of the effects: the deferred unlocks run, as the
// kernel gives up a dead process's locks, and nothing else does.
func TestACrashAtEachStep(t *testing.T) {
	for _, step := range []string{
		"prepare lock-claim", "prepare lock-gpus", "prepare cdi", "prepare record",
		"unprepare lock-claim", "unprepare remove",
	} {
		for _, next := range []string{"reconcile", "prepare", "unprepare"} {
			for _, gone := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, then %s, gone=%t", step, next, gone), func(t *testing.T) {
					r := newRig(t)
					other, claim := r.claim("other", 7), r.claim("c", 0, 1)
					prepare(t, r.start(t), other)
					crash(t, r, claim, step)
					if gone {
						r.api.remove(claim)
					}
					p := r.start(t)
					switch next {
					case "prepare":
						prepare(t, p, claim)
					case "unprepare":
						unprepare(t, p, claim)
					}
					reconcile(t, p)
					survivors := []*resourceapi.ResourceClaim{other}
					if survives(step, next) && !gone {
						survivors = append(survivors, claim)
					}
					r.expect(t, survivors...)
				})
			}
		}
	}
}

// survives reports whether the claim is prepared after a crash at the step and
// what came next. What a crash cut short may have happened or not, but a file
// of it makes the next start finish the preparation.
func survives(step, next string) bool {
	switch next {
	case "prepare":
		return true
	case "unprepare":
		return false
	}
	return step == "prepare cdi" || step == "prepare record" || step == "unprepare lock-claim"
}

func crash(t *testing.T, r *rig, claim *resourceapi.ResourceClaim, step string) {
	t.Helper()
	defer func() {
		if got := recover(); got != errCrash(step) {
			t.Fatalf("got %v, want a crash at %q", got, step)
		}
	}()
	p := r.start(t, func(o *Options) { o.Phases = crashing(step) })
	if _, err := p.Prepare(testContext(t), claim); err != nil {
		t.Fatal(err)
	}
	must(t, p.Unprepare(testContext(t), claim.UID))
}

type crashing string

type errCrash string

func (c crashing) ObservePhase(operation, phase string, _ time.Duration) {
	if step := operation + " " + phase; step == string(c) {
		panic(errCrash(step))
	}
}

// childVariable names the node on which the test binary works until it is killed.
const childVariable = "MICA_TEST_PREPARE_UNTIL_KILLED"

func TestWorkUntilKilled(t *testing.T) {
	dir := os.Getenv(childVariable)
	if dir == "" {
		t.Skip("runs as the child of TestAKilledProcess")
	}
	r := newRig(t)
	r.dir = dir
	p := r.start(t)
	claims := childClaims(r)
	parallel(len(claims), func(i int) {
		for {
			if _, err := p.Prepare(t.Context(), claims[i]); err != nil {
				t.Error(err)
				return
			}
			fmt.Println("prepared", i)
			if err := p.Unprepare(t.Context(), claims[i].UID); err != nil {
				t.Error(err)
				return
			}
		}
	})
}

func childClaims(r *rig) []*resourceapi.ResourceClaim {
	var claims []*resourceapi.ResourceClaim
	for minor := range gpuCount {
		claims = append(claims, r.claim(fmt.Sprint("c", minor), minor))
	}
	return claims
}

// Whatever a killed process was at, the next one finds a node in order, or
// brings it into order.
func TestAKilledProcess(t *testing.T) {
	r := newRig(t)
	claims := childClaims(r)
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 20 {
		workAndKill(t, r.dir, 1+random.IntN(40))
		p := r.start(t)
		reconcile(t, p)
		records, specs := uids(t, r.claimsDir()), uids(t, r.cdiDir())
		if !slices.Equal(records, specs) {
			t.Fatalf("round %d: records of %q, CDI files of %q", round, records, specs)
		}
		for _, claim := range claims {
			if random.IntN(2) == 0 {
				prepare(t, p, claim)
			} else {
				unprepare(t, p, claim)
			}
		}
	}
	p := r.start(t)
	for _, claim := range claims {
		prepare(t, p, claim)
	}
	r.expect(t, claims...)
	for _, claim := range claims {
		unprepare(t, p, claim)
	}
	r.expect(t)
	if held, err := os.ReadDir(filepath.Join(r.dir, "locks")); err != nil || len(held) != 1 {
		t.Errorf("got %v, %v in the directory of locks, want one file", held, err)
	}
}

// workAndKill lets a process prepare that many claims.
func workAndKill(t *testing.T, dir string, prepared int) {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWorkUntilKilled$", "-test.v")
	// It is killed before it can remove its own temporary directories.
	child.Env = append(os.Environ(), childVariable+"="+dir, "TMPDIR="+t.TempDir())
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	output, err := child.StdoutPipe()
	must(t, err)
	must(t, child.Start())
	lines := bufio.NewScanner(output)
	var seen []string
	for count := 0; count < prepared && lines.Scan(); {
		seen = append(seen, lines.Text())
		if strings.HasPrefix(lines.Text(), "prepared ") {
			count++
		}
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatalf("the child ended by itself: %v\n%s", err, strings.Join(seen, "\n"))
	}
	var exit *exec.ExitError
	if err := child.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the child ended with %v\n%s", err, strings.Join(seen, "\n"))
	}
}
