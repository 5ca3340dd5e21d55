package prepare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/mica-gpu/mica/test/fixture"
)

// happening is something that happens to claim c on its node.
type happening func(t *testing.T, r *rig, c *resourceapi.ResourceClaim)

// Each case is a node on which claim c was prepared, and claim other still is.
func TestReconcile(t *testing.T) {
	elsewhere := fixture.Result("gpus", "gpu-0")
	elsewhere.Pool = "node-b"
	goes := func(_ *testing.T, r *rig, c *resourceapi.ResourceClaim) { r.api.remove(c) }
	nameIsReused := func(_ *testing.T, r *rig, c *resourceapi.ResourceClaim) { r.api.put(withUID(c, "uid-reused")) }
	moves := func(_ *testing.T, r *rig, c *resourceapi.ResourceClaim) { r.api.put(fixture.Claim(c.Name, elsewhere)) }
	isUnallocated := func(_ *testing.T, r *rig, c *resourceapi.ResourceClaim) { unallocate(r, c.Name) }
	hasOtherGPUs := func(_ *testing.T, r *rig, c *resourceapi.ResourceClaim) { r.claim(c.Name, 5) }
	losesSpec := func(t *testing.T, r *rig, c *resourceapi.ResourceClaim) { remove(t, r.spec(c)) }
	losesRecord := func(t *testing.T, r *rig, c *resourceapi.ResourceClaim) { remove(t, r.record(c)) }
	recordIs := func(content string) happening {
		return func(t *testing.T, r *rig, c *resourceapi.ResourceClaim) { write(t, r.record(c), content) }
	}
	recordIsCut := func(t *testing.T, r *rig, c *resourceapi.ResourceClaim) {
		write(t, r.record(c), read(t, r.record(c))[:100])
	}
	fileOf := func(uid types.UID, suffix, content string) happening {
		return func(t *testing.T, r *rig, c *resourceapi.ResourceClaim) {
			write(t, r.spec(withUID(c, uid))+suffix, content)
		}
	}
	for name, tc := range map[string]struct {
		happen []happening
		gone   bool // or else c is prepared in the end
		// copied is what is put right if the record has its copy, spoiled if it has none.
		copied, spoiled string
	}{
		"nothing happened":                                         {nil, false, "", ""},
		"the claim is gone":                                        {[]happening{goes}, true, "claim-released 1", "claim-released 1"},
		"the claim is gone and another has its name":               {[]happening{nameIsReused}, true, "claim-released 1", "claim-released 1"},
		"the claim is not allocated any more":                      {[]happening{isUnallocated}, true, "claim-released 1", "claim-released 1"},
		"the claim has other GPUs now":                             {[]happening{hasOtherGPUs}, true, "claim-released 1", "claim-released 1"},
		"the CDI file vanished":                                    {[]happening{losesSpec}, false, "cdi-restored 1", "cdi-restored 1"},
		"the CDI file vanished, and the claim is gone":             {[]happening{losesSpec, goes}, true, "claim-released 1", "claim-released 1"},
		"the record vanished":                                      {[]happening{losesRecord}, false, "record-restored 1", "claim-prepared 1"},
		"the record vanished, and the claim is gone":               {[]happening{losesRecord, goes}, true, "claim-released 1, record-restored 1", "cdi-removed 1"},
		"the record vanished, and the claim moved to another node": {[]happening{losesRecord, moves}, true, "claim-released 1, record-restored 1", "cdi-removed 1"},
		"the record vanished, and another claim has the name":      {[]happening{losesRecord, nameIsReused}, true, "claim-released 1, record-restored 1", "cdi-removed 1"},
		"the record is empty":                                      {[]happening{recordIs("")}, false, "record-restored 1", "claim-prepared 1, record-removed 1"},
		"the record is cut off":                                    {[]happening{recordIsCut}, false, "record-restored 1", "claim-prepared 1, record-removed 1"},
		"the record is damaged, and the claim is gone":             {[]happening{recordIs("damaged"), goes}, true, "claim-released 1, record-restored 1", "cdi-removed 1, record-removed 1"},
		"record and CDI file vanished":                             {[]happening{losesRecord, losesSpec}, true, "", ""},
		"half a CDI file beside the whole one":                     {[]happening{fileOf("uid-c", ".tmp", "{"), spoil, losesRecord}, false, "claim-prepared 1", "claim-prepared 1"},
		"half a CDI file of a claim never prepared":                {[]happening{fileOf("uid-half", ".tmp", "{")}, false, "cdi-removed 1", "cdi-removed 1"},
		"a CDI file without a claim's name":                        {[]happening{fileOf("uid-nameless", "", "{}")}, false, "cdi-removed 1", "cdi-removed 1"},
	} {
		for _, copied := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, copied=%t", name, copied), func(t *testing.T) {
				r := newRig(t)
				c, other := r.claim("c", 0, 1), r.claim("other", 2)
				before := r.start(t)
				prepare(t, before, c)
				prepare(t, before, other)
				want := tc.copied
				if !copied {
					spoil(t, r, c)
					want = tc.spoiled
				}
				for _, happens := range tc.happen {
					happens(t, r, c)
				}
				after := r.start(t)
				corrected := correctionsOf(t)
				reconcile(t, after)
				if got := corrected(); got != want {
					t.Errorf("put right: %q, want %q", got, want)
				}
				survivors := []*resourceapi.ResourceClaim{other}
				if !tc.gone {
					survivors = append(survivors, c)
				}
				r.expect(t, survivors...)
				reconcile(t, after)
				r.expect(t, survivors...)
			})
		}
	}
}

func withUID(claim *resourceapi.ResourceClaim, uid types.UID) *resourceapi.ResourceClaim {
	claim = claim.DeepCopy()
	claim.UID = uid
	return claim
}

func remove(t *testing.T, path string) {
	t.Helper()
	must(t, os.Remove(path))
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	return string(content)
}

func write(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

// A reboot ends all containers, and the CDI files with them where their
// directory is in memory.
func TestReconcileAfterAReboot(t *testing.T) {
	for name, tmpfs := range map[string]bool{"CDI directory in memory": true, "CDI directory on disk": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			claim := r.claim("c", 0)
			prepare(t, r.start(t), claim)
			if tmpfs {
				remove(t, r.spec(claim))
			}
			r.boot = "boot-2"
			p := r.start(t)
			if !tmpfs {
				r.api.remove(claim)
			}
			corrected := correctionsOf(t)
			reconcile(t, p)
			if got := corrected(); got != "claim-forgotten 1" {
				t.Errorf("put right: %q", got)
			}
			r.expect(t)
			r.api.put(claim)
			prepare(t, p, claim)
			r.expect(t, claim)
		})
	}
}

// What the API server does not confirm stays as it is.
func TestReconcileWhileTheAPIServerIsAway(t *testing.T) {
	r, p := run(t)
	gone, live, orphan := r.claim("gone", 0), r.claim("live", 1), r.claim("orphan", 2)
	for _, claim := range []*resourceapi.ResourceClaim{gone, live, orphan} {
		prepare(t, p, claim)
	}
	r.api.remove(gone)
	remove(t, r.record(orphan))
	remove(t, r.spec(live)) // containers may be restarted all the same
	r.api.fail(errAway)
	err := p.Reconcile(testContext(t))
	if err == nil {
		t.Fatal("there is no error")
	}
	for _, claim := range []string{"gone", "live", "orphan"} {
		if !strings.Contains(err.Error(), "claim default/"+claim+" (UID uid-"+claim+"): read the claim from the API server: connection refused") {
			t.Errorf("%q does not say that %s cannot be read", err, claim)
		}
	}
	for _, path := range []string{r.record(gone), r.spec(gone), r.record(live), r.spec(live), r.spec(orphan)} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	remove(t, r.spec(live))
	if err := p.RestoreSpecs(testContext(t)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(r.spec(live)); err != nil {
		t.Error(err)
	}
	r.api.fail(nil)
	reconcile(t, p)
	r.expect(t, live, orphan)
}

// Before the driver answers, nothing can be made, and nothing may be dropped.
func TestReconcileBeforeTheDriverAnswers(t *testing.T) {
	r, p := run(t)
	vanished, orphan, gone := r.claim("vanished", 0), r.claim("orphan", 1), r.claim("gone", 2)
	for _, claim := range []*resourceapi.ResourceClaim{vanished, orphan, gone} {
		prepare(t, p, claim)
	}
	remove(t, r.spec(vanished))
	remove(t, r.record(orphan))
	spoil(t, r, orphan)
	r.api.remove(gone)
	p = r.start(t)
	p.node.Store(nil)
	if err := p.Reconcile(testContext(t)); err == nil || !strings.Contains(err.Error(), "the NVIDIA driver on this node does not answer yet") {
		t.Errorf("got %v", err)
	}
	p.SetNode(Node{Pool: pool(), Edits: r.edits})
	reconcile(t, p)
	r.expect(t, vanished, orphan)
}

// The journal reports a bad file once, so its first reader has to log it.
func TestADamagedRecordIsReported(t *testing.T) {
	for name, look := range map[string]func(ctx context.Context, p *Preparer, r *rig) error{
		"when claims are counted":    func(ctx context.Context, p *Preparer, _ *rig) error { _, err := p.Prepared(ctx); return err },
		"when claims are reconciled": func(ctx context.Context, p *Preparer, _ *rig) error { return p.Reconcile(ctx) },
		"when a claim is prepared": func(ctx context.Context, p *Preparer, r *rig) error {
			_, err := p.Prepare(ctx, r.claim("other", 1))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			claim := r.claim("c", 0)
			prepare(t, r.start(t), claim)
			write(t, r.record(claim), "damaged")
			logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
			must(t, look(klog.NewContext(t.Context(), logger), r.start(t), r))
			logs := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
			if !strings.Contains(logs, "uid-c.json") {
				t.Errorf("the damage is not reported: %s", logs)
			}
			reconcile(t, r.start(t))
			if got := read(t, r.record(claim)); got == "damaged" {
				t.Error("the damaged record stays")
			}
		})
	}
}

// After a loss of power, files of claims that are gone can be empty.
func TestADamagedRecordWithoutAClaimIsRemoved(t *testing.T) {
	r, p := run(t)
	must(t, os.WriteFile(r.record(r.claim("c", 0)), nil, 0o600))
	reconcile(t, p)
	r.expect(t)
	if <-p.Damaged(); len(p.damaged) != 0 {
		t.Error("it is reported for ever")
	}
	reconcile(t, p)
	if len(p.damaged) != 0 {
		t.Error("it is reported for ever")
	}
}

func TestReconcileGoesOnAfterAFailure(t *testing.T) {
	r, p := run(t)
	first, second, gone := r.claim("a", 0), r.claim("b", 1), r.claim("c", 2)
	for _, claim := range []*resourceapi.ResourceClaim{first, second, gone} {
		prepare(t, p, claim)
	}
	remove(t, r.spec(first))
	remove(t, r.spec(second))
	r.api.remove(gone)
	r.edits.FailGPU(uuid(0), errors.New("device node is missing"))
	fixture.Sentence(t, p.Reconcile(testContext(t)), "claim default/a", "device node is missing")
	r.edits.FailGPU(uuid(0), nil)
	if _, err := os.Stat(r.spec(second)); err != nil {
		t.Error(err)
	}
	reconcile(t, p)
	r.expect(t, first, second)
}

// A pod that was deleted by force leaves the API server before kubelet has
// stopped its containers, which may be while the plugin restarts.
func TestReconcileLeavesAClaimThatIsGoneToKubeletForAWhile(t *testing.T) {
	r := newRig(t)
	gone, live := r.claim("gone", 0), r.claim("live", 1)
	before := r.start(t)
	prepare(t, before, gone)
	prepare(t, before, live)
	r.api.remove(gone)
	p := r.start(t, func(o *Options) { o.GoneWait = 25 * time.Second })
	synctest.Test(t, func(t *testing.T) {
		for range 2 { // looking again does not shorten the wait
			reconcile(t, p)
			r.expect(t, gone, live)
		}
		time.Sleep(24 * time.Second)
		reconcile(t, p)
		r.expect(t, gone, live)
		wait, needed := p.ReconcileIn()
		if !needed || wait != time.Second {
			t.Errorf("got %s, %t until the next look, want a second", wait, needed)
		}
		time.Sleep(wait)
		reconcile(t, p)
		r.expect(t, live)
		if _, needed := p.ReconcileIn(); needed {
			t.Error("it wants to look again")
		}
	})
}

func TestAClaimThatComesBackIsAsGoodAsNew(t *testing.T) {
	r := newRig(t)
	p := r.start(t, func(o *Options) { o.GoneWait = 25 * time.Second })
	claims := []*resourceapi.ResourceClaim{r.claim("read", 0), r.claim("prepared", 1), r.claim("unprepared", 2)}
	for _, claim := range claims {
		prepare(t, p, claim)
	}
	synctest.Test(t, func(t *testing.T) {
		for _, claim := range claims {
			unallocate(r, claim.Name)
		}
		reconcile(t, p)
		time.Sleep(20 * time.Second)
		r.api.put(claims[0])
		reconcile(t, p)
		prepare(t, p, claims[1])
		unprepare(t, p, claims[2])
		unallocate(r, claims[0].Name)
		time.Sleep(20 * time.Second)
		reconcile(t, p)
		r.expect(t, claims[0], claims[1])
		time.Sleep(25 * time.Second)
		reconcile(t, p)
		r.expect(t)
	})
}

// kubelet's next call for the claim waits for its lock.
func TestReconcileDoesNotWaitForAnAPIServerThatIsSilent(t *testing.T) {
	r := newRig(t)
	claim := r.claim("c", 0)
	prepare(t, r.start(t), claim)
	p := r.start(t, func(o *Options) { o.Claims = silent{} })
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		fixture.Sentence(t, p.Reconcile(t.Context()), "claim default/c (UID uid-c): read the claim from the API server", "context deadline exceeded")
		if took := time.Since(start); took > readLimit {
			t.Errorf("it took %s", took)
		}
	})
}

// silent never answers.
type silent struct{}

func (silent) Get(ctx context.Context, _ types.NamespacedName) (*resourceapi.ResourceClaim, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// kubelet may unprepare an orphan while the API server is asked about it.
func TestAnOrphanThatKubeletUnpreparesStaysUnprepared(t *testing.T) {
	r := newRig(t)
	claim := r.claim("c", 0)
	prepare(t, r.start(t), claim)
	remove(t, r.record(claim))
	spoil(t, r, claim)
	kubelet := r.start(t)
	p := r.start(t, func(o *Options) {
		o.Claims = between{o.Claims, func() { unprepare(t, kubelet, claim) }}
	})
	reconcile(t, p)
	r.expect(t)
}

// between does something after the API server has answered.
type between struct {
	Claims
	happen func()
}

func (b between) Get(ctx context.Context, name types.NamespacedName) (*resourceapi.ResourceClaim, error) {
	defer b.happen()
	return b.Claims.Get(ctx, name)
}
