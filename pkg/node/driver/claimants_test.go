package driver

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/node/account"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// A claim that is prepared while the others are listed keeps its pods, and one that is gone does not.
func TestAClaimThatComesWhileOthersAreListed(t *testing.T) {
	c := &claimants{known: map[string]account.Claim{}}
	read := func(uid types.UID) {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: uid}}
		claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod-of-" + string(uid)}}
		c.read(claim)
	}
	read("old")
	read("gone")
	known, listed := c.now(), []journal.Record{{ClaimUID: "old"}}
	read("new")
	if c.of(listed, known); len(c.now()) != 2 {
		t.Errorf("known are %v", c.now())
	}
	claims := c.of(append(listed, journal.Record{ClaimUID: "new"}), c.now())
	if pods := claims["new"].Pods; !slices.Equal(pods, []string{"pod-of-new"}) {
		t.Errorf("the claim that has come has the pods %q", pods)
	}
}
