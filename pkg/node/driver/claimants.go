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

// of are those of prepared claims. It forgets the others.
func (c *claimants) of(prepared []journal.Record) map[string]account.Claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := make(map[string]account.Claim, len(prepared))
	for _, record := range prepared {
		if claim, known := c.known[record.ClaimUID]; known {
			kept[record.ClaimUID] = claim
		}
	}
	c.known = kept
	return maps.Clone(kept)
}
