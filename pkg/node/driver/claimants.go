package driver

import (
	"maps"
	"sync"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/node/account"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// claimants remembers of the claims that the plugin has read what their records do not have. Nobody
// reads a claim for its sake: those that are prepared are read when they come, and by Reconcile.
type claimants struct {
	driver string

	mu    sync.Mutex
	known map[string]account.Claim // by UID
}

func (c *claimants) read(claim *resourceapi.ResourceClaim) {
	known := account.ClaimOf(claim, c.driver)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[string(claim.UID)] = known
}

// now are those that are known now.
func (c *claimants) now() map[string]account.Claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.known)
}

// of are those of prepared claims. It forgets others that were known before those were listed: one that
// has come since may be prepared.
func (c *claimants) of(prepared []journal.Record, before map[string]account.Claim) map[string]account.Claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	gone := maps.Clone(before)
	for _, record := range prepared {
		delete(gone, record.ClaimUID)
	}
	for uid := range gone {
		delete(c.known, uid)
	}
	return maps.Clone(c.known)
}
