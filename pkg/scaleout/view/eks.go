package view

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

const (
	// eksTimeout bounds what a slow EKS costs a pass, and with it groups that do not need it.
	eksTimeout = 5 * time.Second
	// eksAtOnce is polite to an API that is throttled by account.
	eksAtOnce = 4
)

// EKS is asked what it says of a group's node group, and of our last update of that.
type EKS interface {
	Describe(ctx context.Context, group *v1alpha1.GPUNodeGroup) Nodegroup
}

// Nodegroup is what EKS says of a node group, or EC2 Auto Scaling of a self-managed one.
type Nodegroup struct {
	Min, Max, Desired int
	// DesiredSince is since when Desired is what it is, as far as the process has seen; zero:
	// for long.
	DesiredSince time.Time
	Status       string
	// Update is the one in progress, empty where there is none.
	Update string
	// Failed is why the last update of ours failed, empty where it did not.
	Failed string
	// Refused is why EKS, not long ago, did not begin an update that we asked for, empty where
	// it did, or may have.
	Refused string
	// Issue is what EKS says keeps the group's machines from coming. It stays at EKS until a
	// scale-up succeeds, and so may be old.
	Issue string
	// ScalingGroup is the one Auto Scaling group that has the machines, empty where that is not
	// known. ScalingRefused is why AWS did not change its size not long ago, though EKS was busy.
	ScalingGroup, ScalingRefused string
	// Err is why EKS could not be asked; then nothing else counts.
	Err     error
	AskedAt time.Time
}

// askEKS asks for the groups that grow by calls of EKS, a few at a time.
func (r *reading) askEKS(ctx context.Context) map[string]Nodegroup {
	if r.EKS == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, eksTimeout)
	defer cancel()
	var (
		asking  errgroup.Group
		lock    sync.Mutex
		answers = map[string]Nodegroup{}
	)
	asking.SetLimit(eksAtOnce)
	for _, group := range r.members.groups {
		if group.Spec.Pairing != v1alpha1.PairingDirect || !callable(group.Spec.Provider) || r.members.refused[group.Name] != "" {
			continue
		}
		asking.Go(func() error {
			answer := r.EKS.Describe(ctx, group)
			lock.Lock()
			defer lock.Unlock()
			answers[group.Name] = answer
			return nil
		})
	}
	_ = asking.Wait() // errors are in the answers
	return answers
}

// callable reports that the provider is known to AWS by a name.
func callable(p v1alpha1.NodeGroupProvider) bool { return p.EKS != nil || p.AutoScalingGroup != "" }
