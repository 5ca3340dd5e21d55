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

// askEKS asks for the groups that grow by calls of EKS.
func (l *Loop) askEKS(ctx context.Context, groups []view.Group) map[string]pair.Nodegroup {
	if l.Nodegroups == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, eksTimeout)
	defer cancel()
	var (
		lock    sync.Mutex
		running sync.WaitGroup
		answers = map[string]pair.Nodegroup{}
		places  = make(chan struct{}, eksAtOnce)
	)
	for _, group := range groups {
		object := group.Object
		if object.Spec.Pairing != v1alpha1.PairingDirect || object.Spec.Provider.EKS == nil || group.Refused != "" {
			continue
		}
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			answer := l.Nodegroups.Describe(ctx, *object.Spec.Provider.EKS, pair.UpdateOf(object))
			lock.Lock()
			defer lock.Unlock()
			answers[object.Name] = answer
		})
	}
	running.Wait()
	return answers
}
