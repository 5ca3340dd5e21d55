package scaletarget

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrNotFound is that there is no such object.
var ErrNotFound = errors.New("does not exist")

// Cluster is what is asked: a client that has no cache, since nobody may list objects of all kinds.
type Cluster interface {
	Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error
	SubResource(name string) client.SubResourceClient
	RESTMapper() meta.RESTMapper
}

const (
	// fresh is how long an answer stands, also one that is an error: a ScaledObject has several
	// triggers, which are asked about twice in 15 s.
	fresh = 10 * time.Second
	// stale is how long the last target stands in for an answer that does not come: a cache would have it
	// as well, and to be without would make KEDA fall back.
	stale = time.Minute
	// most are remembered.
	most = 4096
	// patience is for the answers of the API server to one question.
	patience = 5 * time.Second
)

// Reader reads targets. It is safe for concurrent use.
type Reader struct {
	cluster Cluster
	// remedy says what gives the right to read a resource.
	remedy  func(resource schema.GroupResource) string
	asking  singleflight.Group
	answers *cache.LRUExpireCache
	clock   clock.PassiveClock
}

// NewReader reads nothing yet. remedy says what somebody is to do who may not read a resource.
func NewReader(cluster Cluster, clock clock.PassiveClock, remedy func(resource schema.GroupResource) string) *Reader {
	return &Reader{cluster: cluster, remedy: remedy, clock: clock, answers: cache.NewLRUExpireCacheWithClock(most, clock)}
}

// errUnanswered is that the cluster has said nothing of the object.
var errUnanswered = errors.New("no answer")

// answer is what became of a question.
type answer struct {
	target *Target
	err    error
	// read is when the cluster gave the target.
	read time.Time
	// until is when it is asked again. It is kept longer, for what has not changed.
	until time.Time
}

// keep is how long a target is remembered that nobody asks for.
const keep = 10 * time.Minute

// Read gives an object, as it was some seconds ago at the earliest; while the cluster does not answer, as it
// was up to a minute ago. It is ErrNotFound where there
// is none of that name.
func (r *Reader) Read(ctx context.Context, name Name) (*Target, error) {
	now := r.clock.Now()
	known, _ := r.answers.Get(name)
	last, _ := known.(answer)
	if now.Before(last.until) {
		return last.target, last.err
	}
	asked := r.asking.DoChan(name.Namespace+"/"+name.String(), func() (any, error) {
		// Who has asked first may go while others wait.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		target, err := r.ask(ctx, name, last.target)
		a := answer{target, err, now, now.Add(fresh)}
		if errors.Is(err, errUnanswered) && last.target != nil && now.Sub(last.read) <= stale {
			a.target, a.err, a.read = last.target, nil, last.read
		}
		r.answers.Add(name, a, keep)
		return a, nil
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case result := <-asked:
		a := result.Val.(answer)
		return a.target, a.err
	}
}

// ask reads the scale, and the object where it is another than last.
func (r *Reader) ask(ctx context.Context, name Name, last *Target) (*Target, error) {
	mapping, err := Kind(r.cluster.RESTMapper(), name.Kind, name.Group)
	if err != nil {
		return nil, err
	}
	object, scale := &unstructured.Unstructured{}, &unstructured.Unstructured{}
	object.SetGroupVersionKind(mapping.GroupVersionKind)
	object.SetNamespace(name.Namespace)
	object.SetName(name.Name)
	scale.SetGroupVersionKind(schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"})
	unscaled := r.cluster.SubResource("scale").Get(ctx, object, scale)
	if unscaled != nil && !apierrors.IsNotFound(unscaled) {
		return nil, r.explain(name, mapping.Resource.GroupResource(), "/scale", unscaled)
	}
	if unscaled == nil && last != nil && last.UID == scale.GetUID() && last.version == scale.GetResourceVersion() {
		return last, nil
	}
	if err := r.cluster.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		return nil, r.explain(name, mapping.Resource.GroupResource(), "", err)
	}
	if unscaled != nil {
		// The API server says the same of an object and of a subresource that is not there.
		return nil, fmt.Errorf("%s has no scale subresource, by which KEDA could give it replicas: name the workload that it manages, or use a kind that has one", name)
	}
	target, err := read(object, scale)
	if err != nil {
		return nil, fmt.Errorf("%s in namespace %q cannot be scaled: %w", name, name.Namespace, err)
	}
	return target, nil
}

func (r *Reader) explain(name Name, resource schema.GroupResource, sub string, err error) error {
	resource.Resource += sub
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s %w in namespace %q: create it, or name one that is there", name, ErrNotFound, name.Namespace)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s may not be read (%s): %s", name, resource, r.remedy(resource))
	}
	return fmt.Errorf("read %s of %s in namespace %q: %w: %w", resource, name, name.Namespace, errUnanswered, err)
}
