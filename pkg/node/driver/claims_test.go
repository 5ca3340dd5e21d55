package driver

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/mica-gpu/mica/pkg/node/lock"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
)

// A claim that another call works on delays no other of the same call.
func TestClaimsAreUnpreparedInParallel(t *testing.T) {
	one, two := fixture.Claim("one", fixture.Result("a", "gpu-0")), fixture.Claim("two", fixture.Result("a", "gpu-1"))
	o := options(t, apiserver.New(one, two), newHardware(t))
	d := offering(t, o, one, two)
	locks, err := lock.Open(filepath.Join(DataDir(o.PluginsDir, o.Name), "locks"))
	must(t, err)
	unlock, err := locks.Lock(t.Context(), "claim-uid-one")
	must(t, err)
	done := make(chan map[types.UID]error, 1)
	go func() {
		results, _ := d.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: "uid-one"}, {UID: "uid-two"}})
		done <- results
	}()
	fixture.Eventually(t, "the release of the other claim", func() error {
		if got := specs(t, o); len(got) != 1 || !strings.Contains(got[0], "uid-one") {
			return fmt.Errorf("got CDI files %q", got)
		}
		return nil
	})
	unlock()
	if results := <-done; len(results) != 2 || errors.Join(results["uid-one"], results["uid-two"]) != nil {
		t.Errorf("got %v", results)
	}
}
