package driver

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"

	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
)

// reconciling runs the loop in a bubble of time until the test ends.
func reconciling(t *testing.T, d *Driver) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	fixture.Background(ctx, t, d.reconcile)
	synctest.Wait()
}

// offering is a driver that has found its GPUs and prepared the claims.
func offering(t *testing.T, o Options, claims ...*resourceapi.ResourceClaim) *Driver {
	t.Helper()
	d := newDriver(t, o)
	must(t, d.openHardware(t.Context()))
	<-d.offer.Changed()
	for _, claim := range claims {
		if _, err := d.preparer.Prepare(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// after lets that much time pass.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A claim that was deleted while the plugin was down is left to kubelet for a
// while, and not until the loop happens to look again.
func TestAClaimThatIsGoneIsReleasedWithinHalfAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim := fixture.Claim("one", fixture.Result("a", "gpu-0"))
		api := apiserver.New(claim)
		o := options(t, api, newHardware(t))
		offering(t, o, claim)
		must(t, api.ResourceV1().ResourceClaims(claim.Namespace).Delete(t.Context(), claim.Name, metav1.DeleteOptions{}))
		reconciling(t, offering(t, o)) // after the restart
		after(releaseWait)
		if got := specs(t, o); len(got) != 1 {
			t.Errorf("got CDI files %q while kubelet may be stopping containers", got)
		}
		after(30*time.Second - releaseWait)
		if got := specs(t, o); len(got) != 0 {
			t.Errorf("got CDI files %q", got)
		}
	})
}

// The directory of CDI files comes back in full without the API server.
func TestCDIFilesAreRestoredWithoutTheAPIServer(t *testing.T) {
	one, two := fixture.Claim("one", fixture.Result("a", "gpu-0")), fixture.Claim("two", fixture.Result("a", "gpu-1"))
	api := apiserver.New(one, two)
	o := options(t, api, newHardware(t))
	d := offering(t, o, one, two)
	api.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		t.Error("the API server is asked")
		return true, nil, apiserver.ErrAway
	})
	for _, path := range specs(t, o) {
		must(t, os.Remove(path))
	}
	must(t, d.remakeSpecs(t.Context(), true))
	if got := specs(t, o); len(got) != 2 {
		t.Errorf("got CDI files %q", got)
	}
	if len(d.restored) != 1 {
		t.Error("reconcile is not woken up for the rest")
	}
}

// A node without inotify instances asks the API server what any other node does, and still restores what is
// removed.
func TestWithoutInotifyNothingIsAskedOfTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim := fixture.Claim("one", fixture.Result("a", "gpu-0"))
		api := apiserver.New(claim)
		o := options(t, api, newHardware(t))
		d := offering(t, o, claim)
		var attempts atomic.Int64
		d.newWatcher = func() (*fsnotify.Watcher, error) {
			attempts.Add(1)
			return nil, os.NewSyscallError("inotify_init1", syscall.EMFILE)
		}
		_, ctx := ktesting.NewTestContext(t)
		reconciling(t, d)
		api.ClearActions()
		fixture.Background(ctx, t, d.watchSpecs)
		after(reconcileInterval - time.Second)
		if actions := api.Actions(); len(actions) > 0 {
			t.Errorf("the API server was asked %d times, first %v", len(actions), actions[0])
		}
		if tried, most := attempts.Load(), int64(reconcileInterval/goneInterval)+6; tried < 10 || tried > most {
			t.Errorf("a watch was tried %d times in %s, want 10 to %d", tried, reconcileInterval, most)
		}
		for name, remove := range map[string]func(string) error{"a file": func(dir string) error { return os.Remove(specs(t, o)[0]) }, "the directory": os.RemoveAll} {
			must(t, remove(o.CDIRoot))
			after(goneInterval)
			if got := specs(t, o); len(got) != 1 {
				t.Errorf("%s was removed, and %s later there are CDI files %q", name, goneInterval, got)
			}
		}
	})
}

// Until its claim is prepared anew, nothing guards the GPU of a damaged record.
func TestADamagedRecordIsRepairedAtOnce(t *testing.T) {
	for name, notice := range map[string]func(d *Driver){
		"noticed when claims are counted":    func(d *Driver) { d.countPrepared(context.Background()) },
		"noticed when a CDI file is re-made": func(d *Driver) { d.restoreSpec(context.Background(), specs(t, d.Options)[0]) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				claim := fixture.Claim("one", fixture.Result("a", "gpu-0"))
				o := options(t, apiserver.New(claim), newHardware(t))
				d := offering(t, o, claim)
				reconciling(t, d)
				record := filepath.Join(DataDir(o.PluginsDir, o.Name), "claims", string(claim.UID)+".json")
				must(t, os.WriteFile(record, []byte("damaged"), 0o600))
				notice(d)
				synctest.Wait()
				if count, err := d.preparer.Prepared(t.Context()); err != nil || len(count) != 1 {
					t.Errorf("got %d prepared claims, %v", len(count), err)
				}
			})
		})
	}
}
