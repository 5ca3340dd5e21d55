package control

import (
	"context"
	"sync"
	"time"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

const (
	// eksTimeout bounds what a slow EKS costs a pass, and with it groups that do not need it.
	eksTimeout = 5 * time.Second
	// eksAtOnce is polite to an API that is throttled by account.
	eksAtOnce = 4
)

// askEKS asks for groups, a few at a time.
func (l *Loop) askEKS(ctx context.Context, groups []*v1alpha1.GPUNodeGroup) map[string]view.Nodegroup {
	ctx, cancel := context.WithTimeout(ctx, eksTimeout)
	defer cancel()
	var (
		lock    sync.Mutex
		running sync.WaitGroup
		answers = map[string]view.Nodegroup{}
		places  = make(chan struct{}, eksAtOnce)
	)
	for _, group := range groups {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			answer := l.Nodegroups.Describe(ctx, *group.Spec.Provider.EKS, pair.UpdateOf(group))
			lock.Lock()
			defer lock.Unlock()
			answers[group.Name] = answer
		})
	}
	running.Wait()
	return answers
}
