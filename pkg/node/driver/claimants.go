package driver

import (
	"maps"
	"sync"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/node/account"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// claimants remembers the facts about claims that records lack, such as their pods. It reads no claims
// itself: Prepare and Reconcile read them.
type claimants struct {
	mu    sync.Mutex
	known map[string]account.Claim // by UID
}

func (c *claimants) read(claim *resourceapi.ResourceClaim) {
	known := account.ClaimOf(claim)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[string(claim.UID)] = known
}

// now returns all remembered claims.
func (c *claimants) now() map[string]account.Claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.known)
}

// of returns the prepared claims, and forgets those in before that are no longer prepared. Claims
// added since may be prepared by now.
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
