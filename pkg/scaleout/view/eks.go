package view

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

const (
	// eksTimeout limits how long EKS can delay a pass, and so groups without EKS.
	eksTimeout = 5 * time.Second
	// eksAtOnce is low because EKS throttles by account.
	eksAtOnce = 4
)

// EKS describes the node group of a group, with the controller's last update of it.
type EKS interface {
	Describe(ctx context.Context, group *v1alpha1.GPUNodeGroup) Nodegroup
}

// Nodegroup is the state of a node group at EKS, or of a self-managed one at EC2 Auto Scaling.
type Nodegroup struct {
	Min, Max, Desired int
	// DesiredSince is when the process has first seen this value of Desired; zero: long ago.
	DesiredSince time.Time
	Status       string
	// Update is the ID of the update in progress; empty: none.
	Update string
	// Failed is why the controller's last update failed; empty: it did not.
	Failed string
	// Refused is why EKS has recently not begun an update of the controller; empty: it has or may have.
	Refused string
	// Issue is EKS's reason why machines do not come. EKS keeps it until a scale-up succeeds, so it may be old.
	Issue string
	// ScalingGroup is the Auto Scaling group that has the machines; empty: unknown. ScalingRefused is why AWS has
	// recently not changed its size while EKS was busy.
	ScalingGroup, ScalingRefused string
	// Err is why EKS did not answer. The other fields are then invalid.
	Err     error
	AskedAt time.Time
}

// askEKS describes the groups that grow by calls of EKS, a few at a time.
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

// callable reports whether the provider names a group at AWS.
func callable(p v1alpha1.NodeGroupProvider) bool { return p.EKS != nil || p.AutoScalingGroup != "" }
